"""Playing: the episodes of a batch as coroutines, which wait for their players' completions.

When every episode waits for a player or is over, the waiting calls of each player are sampled as
one batch. A `TurnSampler` whose `concurrency` is above 1 (an engine) draws each call in a thread as
soon as the episode makes it; draws whose episodes are over are scored meanwhile. No collective
depends on the timing: processes agree on further batches of a sharded policy only when all of their
own episodes wait. Policies sample in the main thread, the coroutines run in a thread of their own.
"""

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import islice
from typing import Any

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
from groupwise.episodes import child_tasks, latest
from groupwise.episodes.calls import calls_for, row_of
from groupwise.episodes.episode_player import EpisodePlayer
from groupwise.episodes.episode_task import EpisodeTask
from groupwise.episodes.places import Places
from groupwise.episodes.player_sampler import PlayerSampler
from groupwise.episodes.timed_calls import OverdueError
from groupwise.kit import terminal
from groupwise.kit.copies import copied, kept
from groupwise.kit.errors import UserError
from groupwise.record import Call, Episode


class Playing:
    """The episodes of a batch; its methods run in the event loop.

    samplers: of the players, by label; requests of those that are concurrent do not wait for those
    of other episodes. deadline: seconds that the environment may take between two completions of an
    episode. at_once: how many episodes are played at a time, in their order; all if unset. warned:
    what the sampler has warned of in other batches, to which this one adds.
    """

    def __init__(
        self,
        environment: Environment,
        episodes: Sequence[Episode],
        samplers: Mapping[str, PlayerSampler],
        *,
        deadline: float,
        at_once: int | None = None,
        warned: set[str] | None = None,
    ) -> None:
        self.environment, self.episodes, self.samplers = environment, episodes, samplers
        self._warned = set() if warned is None else warned
        self.deadline, self.at_once, self.places = deadline, at_once, Places(environment)
        self._takes_seed = "seed" in signature(environment.play).parameters
        self._progress = {episode: EpisodeTask() for episode in episodes}
        self._unbegun = iter(episodes)
        # The calls for one context, which are a request, by the first of them what awaits them.
        self._requests: list[Sequence[Call]] = []
        self._answers: dict[Call, asyncio.Future[None]] = {}
        self._draws: set[asyncio.Task[Any]] = set()
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        # Episodes that have begun, and neither wait for a player nor are over; requests that are
        # being drawn beside others; requests and ends so far; ends so far, and at the last return
        # of `waiting`.
        self._busy = self._drawing = self._events = self._over = self._reported = 0

    async def begin(self) -> None:
        """Start the first episodes; each of the others begins when one is over."""
        asyncio.get_running_loop().set_task_factory(child_tasks.started)
        self._context = contextvars.copy_context()  # not that of the episode which is over
        self._begin(self.at_once)

    def _begin(self, count: int | None) -> None:
        """Start so many further episodes, all of them if None."""
        for episode in islice(self._unbegun, count):
            self._busy += 1
            self._progress[episode].begin(self._play(episode), self._context)
            self._start_time(episode)

    async def resume(self, answered: Sequence[Sequence[Call]]) -> None:
        """Resume the episodes whose requests, the calls for one context each, are answered."""
        for request in answered:
            self._resume(request)

    def _resume(self, request: Sequence[Call]) -> None:
        first = request[0]
        episode, progress = first.episode, self._progress[first.episode]
        if not episode.over:
            progress.waiting -= 1
            if not progress.waiting:
                self._busy += 1
                self._start_time(episode)
        if isinstance(first.error, ContextRefused) and first.parent is not None:
            first.parent.refuse(first.label, everything=first.follows_all)
        answer = self._answers.pop(first)
        if answer.done():  # cancelled: `play` waits for it no longer
            return
        if first.error is not None:
            answer.set_exception(first.error)
        else:
            answer.set_result(None)

    async def stop(self) -> None:
        """End what still runs, and name what many episodes that are over have left running."""
        self._unbegun = iter(())
        for task in self._draws:
            task.cancel()
        for episode, progress in self._progress.items():
            if not episode.over:
                progress.cancel()
        left = [own.tasks - {own.task} for each, own in self._progress.items() if each.over]
        for kind in await child_tasks.left(left, self.places.waits):
            if kind not in self._warned:
                self._warned.add(kind)
                terminal.say(
                    f"warning: episodes leave a task running: {kind}. It goes on until the run "
                    f"ends; `play` should await or cancel what it starts, unless later episodes "
                    f"share it"
                )

    async def waiting(self) -> Sequence[Sequence[Call]] | None:
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
        requests, self._requests = sorted(self._requests, key=_place), []
        for first, *_ in requests:
            if first.episode.over and not (answer := self._answers.pop(first)).done():
                answer.set_exception(EpisodeEnded("the episode is over"))
        return [request for request in requests if not request[0].episode.over]

    async def _play(self, episode: Episode) -> None:
        players = {label: EpisodePlayer(self, episode, label) for label in episode.cast}
        latest.note(None)
        try:
            seed = {"seed": episode.seed} if self._takes_seed else {}
            row = copied(episode.group.row)
            outcome = kept(await self.environment.play(row, players, **seed))
            fault = self._fault(episode, outcome)
            self._end(episode, outcome=None if fault else outcome, failure=fault)
        except OverdueError as error:
            self._end(episode, failure=str(error))
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
        progress = self._progress[episode]
        self._busy -= not progress.waiting
        episode.over, progress.waiting = True, 0
        progress.stop_time()
        self._over += 1
        self._begin(1)
        self._happened()

    def _start_time(self, episode: Episode) -> None:
        self._progress[episode].start_time(self.deadline, partial(self._overdue, episode))

    def _overdue(self, episode: Episode) -> None:
        """The episode is over, whatever its code makes of being cancelled."""
        progress = self._progress[episode]
        where = "" if progress.task is None else self.places.waits(progress.task.get_coro())
        failure = (
            f"the environment took longer than {self.deadline:g} s between two completions{where}; "
            f"`turn_deadline` allows more"
        )
        self._end(episode, failure=failure, error="TimeoutError")
        progress.cancel()

    async def _draw(self, request: Sequence[Call]) -> None:
        """Draw the completions of a request, and resume its episode."""
        try:
            await self.samplers[request[0].label].draw(request)
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
        progress = self._progress[episode]
        progress.was_called = True
        chosen = after is not None
        if after is None and isinstance(context, Reply):
            after = context
        source = None if after is None else after.source
        if source is not None and source not in episode.calls:
            which = "the context" if after is context else "`after`"
            raise ValueError(f"{which} is a reply of another episode")
        parent: Call | None = latest.call(episode) if source is None else source
        sampler = self.samplers[label]
        row = row_of(context, episode.group.row, tools)
        if row is not episode.group.row and sampler.sampling.policy.skips(row):
            if parent is not None:
                parent.refuse(label, everything=source is None)
            raise ContextRefused(f"{label!r} cannot take this context")
        request = calls_for(
            episode,
            label,
            row,
            parent,
            grouped=sampler.group_size if grouped else None,
            chosen=chosen,
            in_turn=source is None,
            limit=limit,
            tools=None if tools is None else row["tools"],
        )
        answer = self._answers[request[0]] = asyncio.get_running_loop().create_future()
        episode.calls += request
        if not progress.waiting:
            self._busy -= 1
            progress.stop_time()
        progress.waiting += 1
        if sampler.is_concurrent:
            self._drawing += 1
            # In a context of its own, since it is no task of the episode.
            task = asyncio.create_task(self._draw(request), context=contextvars.Context())
            self._draws.add(task)
            task.add_done_callback(self._draws.discard)
        else:
            self._requests.append(request)
        self._happened()
        await answer
        latest.note(request[-1])
        replies = [_copied(call.reply) for call in request if call.reply is not None]
        if not replies:
            raise CompletionFailed(f"the completion of {label!r} failed")
        return replies

    def _fault(self, episode: Episode, outcome: Outcome) -> str | None:
        """What is wrong with what `play` returned or did."""
        if not self._progress[episode].was_called:
            return "`play` called no player (is an `await` missing?)"
        pairs = outcome if isinstance(outcome, Sequence) else ()
        replies = [pair[0] for pair in pairs if isinstance(pair, tuple) and pair]
        foreign = any(isinstance(r, Reply) and r.source not in episode.calls for r in replies)
        return "`play` returned a reply of another episode" if foreign else None


def _place(request: Sequence[Call]) -> tuple[int, int]:
    """The order of a request in a batch, whatever the timing."""
    first = request[0]
    return first.episode.place, first.episode.calls.index(first)


def _copied(reply: Reply) -> Reply:
    """A reply as an environment gets it."""
    calls = [replace(call, arguments=copied(call.arguments)) for call in reply.calls]
    return replace(reply, completion=copied(reply.completion), calls=tuple(calls))
