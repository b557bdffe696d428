"""Playing: the episodes of a batch as coroutines, which wait for their players' completions."""

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from typing import Any

from groupwise import terminal
from groupwise.copies import copied, kept
from groupwise.environment import (
    CompletionFailed,
    Context,
    ContextRefused,
    Environment,
    EpisodeEnded,
    Outcome,
    Reply,
    Tools,
)
from groupwise.errors import UserError
from groupwise.training import child_tasks
from groupwise.training.calls import Call, Episode, Request, calls_for, row_of
from groupwise.training.places import Places
from groupwise.training.player_sampler import PlayerSampler

LATEST: ContextVar[tuple[Call | None, "asyncio.Task[Any] | None"]] = ContextVar("latest")
"""The last call of a task of an episode, or of the task that started it, and which one made it."""


class Playing:
    """The episodes of a batch; its methods run in the event loop.

    samplers: of the players, by label; requests of those that are concurrent do not wait for those
    of other episodes. deadline: seconds that the environment may take between two completions of an
    episode.
    """

    def __init__(
        self,
        environment: Environment,
        episodes: Sequence[Episode],
        samplers: Mapping[str, PlayerSampler],
        *,
        deadline: float,
    ) -> None:
        self.environment, self.episodes, self.samplers = environment, episodes, samplers
        self.deadline, self.places = deadline, Places(environment)
        self._takes_seed = "seed" in signature(environment.play).parameters
        self._requests: list[Request] = []
        self._draws: set[asyncio.Task[Any]] = set()
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        # Episodes that neither wait for a player nor are over; requests that are being drawn beside
        # others; requests and ends so far; ends so far, and at the last return of `waiting`.
        self._busy = self._drawing = self._events = self._over = self._reported = 0

    async def begin(self) -> None:
        """Start all episodes."""
        asyncio.get_running_loop().set_task_factory(child_tasks.started)
        self._busy = len(self.episodes)
        for episode in self.episodes:
            context = child_tasks.owning(episode.tasks)
            episode.task = asyncio.create_task(self._play(episode), context=context)
            self._start_timer(episode)

    async def resume(self, answered: Sequence[Request]) -> None:
        """Resume the episodes whose requests are answered."""
        for request in answered:
            self._resume(request)

    def _resume(self, request: Request) -> None:
        episode, parent = request.episode, request.calls[0].parent
        if not episode.over:
            episode.waiting -= 1
            if not episode.waiting:
                self._busy += 1
                self._start_timer(episode)
        if request.refused and parent is not None:
            parent.refused_by = request.label
        if request.answer.done():  # cancelled: `play` waits for it no longer
            return
        if request.error is not None:
            request.answer.set_exception(request.error)
        else:
            request.answer.set_result(None)

    async def stop(self) -> None:
        """End what still runs, and name what many episodes that are over have left running."""
        for task in self._draws:
            task.cancel()
        for episode in self.episodes:
            if not episode.over:
                _cancel(episode)
        left = [own.tasks - {own.task} for own in self.episodes if own.over]
        for kind in await child_tasks.left(left, self.places.waits):
            _warn_once(
                f"episodes leave a task running: {kind}. It goes on until the run ends; `play` "
                f"should await or cancel what it starts, unless later episodes share it"
            )

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
            if request.episode.over and not request.answer.done():
                request.answer.set_exception(EpisodeEnded("the episode is over"))
        return [request for request in requests if not request.episode.over]

    async def _play(self, episode: Episode) -> None:
        players = {label: _Player(self, episode, label) for label in episode.cast}
        LATEST.set((None, asyncio.current_task()))
        try:
            seed = {"seed": episode.seed} if self._takes_seed else {}
            row = copied(episode.draw.row)
            outcome = kept(await self.environment.play(row, players, **seed))
            fault = _fault(episode, outcome)
            self._end(episode, outcome=None if fault else outcome, failure=fault)
        except CompletionFailed:
            self._end(episode)  # its rollout says so
        except EpisodeEnded as error:
            is_refused = isinstance(error, ContextRefused)
            self._end(episode, ended="refused" if is_refused else "environment")
        except UserError as error:
            self._error = error
            self._end(episode)
        except BaseException as error:  # also SystemExit, which would end the event loop
            name = type(error).__name__
            failure = f"the environment raised {name}: {error}{self.places.raised(error)}"
            self._end(episode, failure=failure, error=name)

    def _end(self, episode: Episode, **how: Any) -> None:
        """The episode is over, with these attributes; unless it is since its deadline."""
        if episode.over:
            return
        for name, value in how.items():
            setattr(episode, name, value)
        self._busy -= not episode.waiting
        episode.over, episode.waiting = True, 0
        if episode.timer is not None:
            episode.timer.cancel()
        self._over += 1
        self._happened()

    def _start_timer(self, episode: Episode) -> None:
        loop = asyncio.get_running_loop()
        episode.timer = loop.call_later(self.deadline, self._overdue, episode)

    def _overdue(self, episode: Episode) -> None:
        """The episode is over, whatever its code makes of being cancelled."""
        where = "" if episode.task is None else self.places.waits(episode.task.get_coro())
        failure = (
            f"the environment took longer than {self.deadline:g} s between two completions{where}; "
            f"`turn_deadline` allows more"
        )
        self._end(episode, failure=failure, error="TimeoutError")
        _cancel(episode)

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
        after: Reply | None = None,
        limit: int | None = None,
        tools: Tools | None = None,
    ) -> list[Reply]:
        """Replies to a context, without those that failed."""
        if episode.over:
            raise EpisodeEnded("the episode is over")
        episode.was_called = True
        chosen = after is not None
        if after is None and isinstance(context, Reply):
            after = context
        source = None if after is None else after.source
        if source is not None and source not in episode.calls:
            which = "the context" if after is context else "`after`"
            raise ValueError(f"{which} is a reply of another episode")
        parent: Call | None = _latest(episode) if source is None else source
        sampler = self.samplers[label]
        row = row_of(context, episode.draw.row, tools)
        if row is not episode.draw.row and sampler.sampling.policy.skips(row):
            if parent is not None:
                parent.refused_by = label
            raise ContextRefused(f"{label!r} cannot take this context")
        size = sampler.group_size if grouped else None
        calls = calls_for(episode, label, row, parent, grouped=size, chosen=chosen)
        answer = asyncio.get_running_loop().create_future()
        shown = None if tools is None else row["tools"]
        request = Request(episode, label, calls, answer, limit, shown)
        episode.calls += calls
        if not episode.waiting:
            self._busy -= 1
            if episode.timer is not None:
                episode.timer.cancel()
        episode.waiting += 1
        if sampler.is_concurrent:
            self._drawing += 1
            # In a context of its own, since it is no task of the episode.
            task = asyncio.create_task(self._draw(request), context=contextvars.Context())
            self._draws.add(task)
            task.add_done_callback(self._draws.discard)
        else:
            self._requests.append(request)
        self._happened()
        await request.answer
        LATEST.set((calls[-1], asyncio.current_task()))
        replies = [_copied(call.reply) for call in calls if call.reply is not None]
        if not replies:
            raise CompletionFailed(f"the completion of {label!r} failed")
        return replies


def _fault(episode: Episode, outcome: Outcome) -> str | None:
    """What is wrong with what `play` returned or did."""
    if not episode.was_called:
        return "`play` called no player (is an `await` missing?)"
    pairs = outcome if isinstance(outcome, Sequence) else ()
    replies = [pair[0] for pair in pairs if isinstance(pair, tuple) and pair]
    foreign = any(isinstance(r, Reply) and r.source not in episode.calls for r in replies)
    return "`play` returned a reply of another episode" if foreign else None


def _copied(reply: Reply) -> Reply:
    """A reply as an environment gets it."""
    calls = [replace(call, arguments=copied(call.arguments)) for call in reply.calls]
    return replace(reply, completion=copied(reply.completion), calls=tuple(calls))


def _cancel(episode: Episode) -> None:
    if episode.timer is not None:
        episode.timer.cancel()
    for task in [*episode.tasks]:
        task.cancel()


@cache
def _warn_once(text: str) -> None:
    terminal.say(f"warning: {text}")


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

    async def __call__(self, context: Context, **options: Any) -> Reply:
        (reply,) = await self._replies(context, grouped=False, **options)
        return reply

    async def group(self, context: Context, **options: Any) -> Sequence[Reply]:
        return await self._replies(context, grouped=True, **options)

    async def shortened(self, content: Any, most: int) -> Any:
        return self.playing.samplers[self.label].shortened(content, most)

    async def _replies(self, context: Context, **options: Any) -> list[Reply]:
        return await self.playing.replies(self.episode, self.label, context, **options)
