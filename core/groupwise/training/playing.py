"""Playing: the episodes of a batch as coroutines, which wait for their players' completions."""

import asyncio
import traceback
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from groupwise.environment import (
    CompletionFailed,
    Context,
    ContextRefused,
    Environment,
    EpisodeEnded,
    Reply,
    Tools,
)
from groupwise.errors import UserError
from groupwise.training.calls import Call, Episode, Request, calls_for, row_of
from groupwise.training.player_sampler import PlayerSampler

LATEST: ContextVar[tuple[Call | None, "asyncio.Task[Any] | None"]] = ContextVar("latest")
"""The last call of a task of an episode, or of the task that started it, and which one made it."""


class Playing:
    """The episodes of a batch; its methods run in the event loop.

    samplers: of the players, by label; requests of those that are concurrent do not wait for those
    of other episodes.
    """

    def __init__(
        self,
        environment: Environment,
        episodes: Sequence[Episode],
        samplers: Mapping[str, PlayerSampler],
    ) -> None:
        self.environment, self.episodes, self.samplers = environment, episodes, samplers
        self._takes_seed = "seed" in signature(environment.play).parameters
        self._requests: list[Request] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        # Episodes that neither wait for a player nor are over; requests that are being drawn beside
        # others; requests and ends so far; ends so far, and at the last return of `waiting`.
        self._busy = self._drawing = self._events = self._over = self._reported = 0

    async def begin(self) -> None:
        """Start all episodes."""
        self._busy = len(self.episodes)
        self._tasks = [asyncio.create_task(self._play(episode)) for episode in self.episodes]

    async def resume(self, answered: Sequence[Request]) -> None:
        """Resume the episodes whose requests are answered."""
        for request in answered:
            self._resume(request)

    def _resume(self, request: Request) -> None:
        episode, parent = request.episode, request.calls[0].parent
        if not episode.over:
            episode.waiting -= 1
            self._busy += not episode.waiting
        if request.refused and parent is not None:
            parent.refused_by = request.label
        if request.answer.done():  # cancelled: `play` waits for it no longer
            return
        if request.refused:
            request.answer.set_exception(ContextRefused("no room is left for this context"))
        else:
            request.answer.set_result(None)

    async def stop(self) -> None:
        """Cancel what still runs."""
        for task in self._tasks:
            task.cancel()

    async def waiting(self) -> Sequence[Request] | None:
        """The requests of all episodes, once each waits for a player or is over; None before that,
        if further episodes are over while requests are being drawn.

        Raises what a sampler raised, and the UserError of an episode.
        """
        seen = -1
        while self._busy or self._drawing or seen != self._events:
            if self._error is not None:
                raise self._error
            if self._drawing and self._over > self._reported:
                self._reported = self._over
                return None
            seen = self._events
            if self._busy or self._drawing:
                self._changed.clear()
                await self._changed.wait()
            else:  # an episode may call players from several tasks: these have begun after a turn
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        requests, self._requests = sorted(self._requests, key=lambda each: each.place), []
        for request in requests:
            if request.episode.over:
                request.answer.set_exception(EpisodeEnded("the episode is over"))
        return [request for request in requests if not request.episode.over]

    async def _play(self, episode: Episode) -> None:
        players = {label: _Player(self, episode, label) for label in episode.cast}
        LATEST.set((None, asyncio.current_task()))
        try:
            seed = {"seed": episode.seed} if self._takes_seed else {}
            episode.outcome = await self.environment.play(episode.draw.row, players, **seed)
            if not episode.was_called:
                episode.failure = "`play` called no player (is an `await` missing?)"
        except CompletionFailed:
            pass  # its rollout says so
        except EpisodeEnded as error:
            episode.ended = "refused" if isinstance(error, ContextRefused) else "environment"
        except UserError as error:
            self._error = error
        except Exception as error:
            where = _place(error, type(self.environment).play.__code__.co_filename)
            episode.failure = f"the environment raised {type(error).__name__}: {error}{where}"
        finally:
            self._busy -= not episode.waiting
            episode.over, episode.waiting = True, 0
            self._over += 1
            self._happened()

    async def _draw(self, request: Request) -> None:
        """Draw the completions of a request, and resume its episode."""
        try:
            await self.samplers[request.label].draw(request)
            self._resume(request)
        except Exception as error:  # the sampler's: it ends the run, whatever `play` catches
            self._error = error
        finally:
            self._drawing -= 1
            self._happened()

    def _happened(self) -> None:
        self._events += 1
        self._changed.set()

    async def replies(
        self,
        episode: Episode,
        label: str,
        context: Context,
        *,
        grouped: bool,
        limit: int | None,
        tools: Tools | None,
    ) -> list[Reply]:
        """Replies to a context, without those that failed."""
        if episode.over:
            raise EpisodeEnded("the episode is over")
        episode.was_called = True
        source = context.source if isinstance(context, Reply) else None
        parent: Call | None = _latest(episode) if source is None else source
        sampler = self.samplers[label]
        row = row_of(context, episode.draw.row, tools)
        if row is not episode.draw.row and sampler.sampling.policy.skips(row):
            if parent is not None:
                parent.refused_by = label
            raise ContextRefused(f"{label!r} cannot take this context")
        size = sampler.group_size if grouped else None
        calls = calls_for(episode, label, row, parent, grouped=size)
        answer = asyncio.get_running_loop().create_future()
        request = Request(episode, label, calls, answer, limit, tools)
        episode.calls += calls
        self._busy -= not episode.waiting
        episode.waiting += 1
        if sampler.is_concurrent:
            self._drawing += 1
            self._tasks.append(asyncio.create_task(self._draw(request)))
        else:
            self._requests.append(request)
        self._happened()
        await request.answer
        LATEST.set((calls[-1], asyncio.current_task()))
        replies = [call.reply for call in calls if call.reply is not None]
        if not replies:
            raise CompletionFailed(f"the completion of {label!r} failed")
        return replies


def _place(error: Exception, file: str) -> str:
    """' (line 12 of calculator.py)': the innermost line of this file in the traceback."""
    lines = [
        each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file
    ]
    return f" (line {lines[-1]} of {Path(file).name})" if lines else ""


def _latest(episode: Episode) -> Call | None:
    """The call that the next one of this task follows, however long other tasks take: its own last
    one or, if tasks that it waited for went on from there, the last of theirs."""
    call, task = LATEST.get((None, None))
    while task is asyncio.current_task() and (followers := episode.followers(call)):
        call = followers[-1]
    return call


@dataclass(frozen=True)
class _Player:
    """A player of one episode; see `groupwise.environment.Player`."""

    playing: Playing
    episode: Episode
    label: str

    async def __call__(
        self, context: Context, *, limit: int | None = None, tools: Tools | None = None
    ) -> Reply:
        (reply,) = await self._replies(context, grouped=False, limit=limit, tools=tools)
        return reply

    async def group(
        self, context: Context, *, limit: int | None = None, tools: Tools | None = None
    ) -> Sequence[Reply]:
        return await self._replies(context, grouped=True, limit=limit, tools=tools)

    async def shortened(self, text: str, most: int) -> str:
        return self.playing.samplers[self.label].shortened(text, most)

    async def _replies(self, context: Context, **options: Any) -> list[Reply]:
        return await self.playing.replies(self.episode, self.label, context, **options)
