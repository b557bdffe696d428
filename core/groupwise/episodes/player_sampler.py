"""PlayerSampler: samples the calls of one player: as rows, turn by turn, or each as it comes."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from accelerate.utils import gather_object

from groupwise.environment import ContextRefused, Reply
from groupwise.episodes.sampling import Sampling
from groupwise.episodes.timed_calls import OverdueError
from groupwise.kit import processes, terminal
from groupwise.kit.copies import equal, kept
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.record import Call, Comparison
from groupwise.record.gather import write
from groupwise.record.seeds import seed_for
from groupwise.rollouts import Rollouts
from groupwise.sampler import Drawn, Purpose, TurnSampler
from groupwise.tool_call import ToolCall, calls_of


class PlayerSampler:
    """Samples completions of one player for a batch of episodes, and writes them on the calls.

    group_size: the completions of `Player.group`; space: of the seeds; dummy: a row to sample and
    drop where other processes of a sharded policy have more prompts; multi_turn: whether calls are
    drawn turn by turn, if the sampler can; together: whether all processes sample at the same time.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        group_size: int,
        space: str,
        purpose: Purpose,
        dummy: Row,
        multi_turn: bool,
        together: bool,
    ) -> None:
        self.sampling, self.group_size = sampling, group_size
        self.space, self.dummy = space, dummy
        self.purpose: Purpose = purpose
        if purpose == "greedy" and not sampling.policy.greedy:
            self.purpose = "evaluate"
        self.by_turns = multi_turn and isinstance(sampling.sampler, TurnSampler)
        self.spreads = together and sampling.spreads and not self.by_turns
        self._threads: ThreadPoolExecutor | None = None

    @property
    def is_collective(self) -> bool:
        """Whether all processes must sample equally often."""
        return self.spreads or (self.sampling.is_collective and not self.by_turns)

    @property
    def is_concurrent(self) -> bool:
        """Whether each request is drawn by itself, by `draw`, instead of in batches."""
        return self.by_turns and self.sampling.turn_sampler.concurrency > 1

    def shortened(self, content: Any, most: int) -> Any:
        """A content of at most `most` tokens of the player; see `Player.shortened`."""
        sampler = self.sampling.sampler
        return sampler.shortened(content, most) if isinstance(sampler, TurnSampler) else content

    @contextmanager
    def session(self) -> Iterator[None]:
        """The context in which all calls of the batch are sampled; draws that are still running at
        its end are waited for, and those that have not begun are dropped."""
        if not self.by_turns:
            yield
            return
        with self.sampling.session():
            self._threads = ThreadPoolExecutor(self.sampling.turn_sampler.concurrency)
            try:
                yield
            finally:
                self._threads.shutdown(cancel_futures=True)

    def sample(self, requests: Sequence[Sequence[Call]]) -> Iterator[Sequence[Sequence[Call]]]:
        """Sample the completions of these requests, the calls for one context each; yields those
        that are answered."""
        left = [*requests]
        for _ in self._turns(left) if self.by_turns else self._rows(left):
            yield [request for request in left if _is_answered(request)]
            left = [request for request in left if not _is_answered(request)]

    async def draw(self, request: Sequence[Call]) -> None:
        """Draw the completions of a request in a thread, beside those of others; they are dropped
        if the episode is over by then."""
        calls, *columns = self._next_turns([request])
        if not calls:
            return
        loop = asyncio.get_running_loop()
        try:
            pairs = await loop.run_in_executor(self._threads, self._drawn, *columns)
        except OverdueError as error:
            _give_up([request], error)
            return
        if not request[0].episode.over:
            _write_turns(pairs, calls, self.sampling.turn_sampler)

    def _drawn(self, *columns: Sequence[Any]) -> list[Any]:
        parts = self.sampling.turns(*columns, purpose=self.purpose)
        return [pair for pairs in parts for pair in pairs]

    def _seed(self, call: Call) -> int:
        return seed_for(self.sampling.seed, self.space + call.space, call.number, call.index)

    def _group_seed(self, call: Call) -> int:
        """The seed of what all calls share that it is compared with, however they are batched: of
        candidates that of the first one, of others it is made of their comparison."""
        if call.is_candidate:
            return self._seed(call.request[0])
        group = call.episode.group
        place = "" if call.comparison.is_plain else f"/{call.comparison.place}"
        space = f"{self.space}{group.seed_space}{place}"
        return seed_for(self.sampling.seed, space, group.seed_number, 0)

    def _rows(self, requests: Sequence[Sequence[Call]]) -> Iterator[None]:
        """Each call as a row; yields after each part that was sampled."""
        if any(request[0].limit is not None for request in requests):
            name = type(self.sampling.sampler).__name__
            raise UserError(
                f"the environment limits a completion, which {name} does not support: it samples "
                f"whole completions"
            )
        calls = [call for request in requests for call in request]
        size, batches = _batches(calls, collective=self.is_collective)
        rows = [own[0].row for own in batches]
        seeds = [[*map(self._seed, own)] for own in batches]
        group_seeds = [self._group_seed(own[0]) for own in batches]
        if self.spreads:
            parts = self.sampling.spread(
                rows, seeds, purpose=self.purpose, group_seeds=group_seeds, dummy=self.dummy
            )
        else:
            count = len(batches)
            if self.is_collective and (missing := processes.largest(count) - count):
                space = f"{self.space} dummy"
                dummies = [seed_for(self.sampling.seed, space, 0, index) for index in range(size)]
                rows += [self.dummy] * missing
                seeds += [dummies] * missing
                group_seeds += dummies[:1] * missing
            parts = self.sampling.draw(
                rows, seeds, purpose=self.purpose, group_seeds=group_seeds, most=count
            )
        ordered, start = [call for batch in batches for call in batch], 0
        try:
            for rollouts in parts:
                part = ordered[start : start + len(rollouts)]
                _write_rows(rollouts, part, trained=self.purpose == "train")
                start += len(rollouts)
                del rollouts  # else this frame holds them while the next ones are sampled
                yield
        except OverdueError as error:
            _give_up([request for request in requests if not _is_answered(request)], error)
            yield

    def _turns(self, requests: Sequence[Sequence[Call]]) -> Iterator[None]:
        """The next turn of each call's context; yields after each part that was drawn."""
        calls, *columns = self._next_turns(requests)
        start = 0
        for pairs in self.sampling.turns(*columns, purpose=self.purpose):
            part = calls[start : start + len(pairs)]
            _write_turns(pairs, part, self.sampling.turn_sampler)
            start += len(pairs)
            yield
        if any(request[0].error is not None for request in requests):
            yield

    def _next_turns(
        self, requests: Sequence[Sequence[Call]]
    ) -> tuple[list[Call], list[Any], list[int], list[int]]:
        """The calls of requests whose contexts can go on, with the context, seed and limit of each;
        of others the `error`."""
        sampler = self.sampling.turn_sampler
        calls, contexts, limits = list[Call](), list[Any](), list[int]()
        for request in requests:
            first = request[0]
            try:
                context = self._context(request)
            except UserError as error:  # of these messages: it is raised where `play` waits
                first.error = error
                continue
            room = sampler.room(context)
            room = room if first.limit is None else min(room, first.limit)
            if room >= 1:
                calls += request
                contexts += [context] * len(request)
                limits += [room] * len(request)
                continue
            first.error = ContextRefused("no room is left for this context")
            if first.goes_on_from is not None:
                first.goes_on_from.is_cut = True
        return calls, contexts, [self._seed(call) for call in calls], limits

    def _context(self, request: Sequence[Call]) -> Any:
        """The context of a request: that of a call of the player whose context its prompt begins
        with, the latest one among those that it follows, else in the episode; or a new one."""
        first, sampler = request[0], self.sampling.turn_sampler
        for earlier in (*first.ancestors, *reversed(first.episode.calls)):
            if earlier.label != first.label or earlier.context is None:
                continue
            tools = earlier.row.get("tools")
            if first.tools is not None and [*first.tools] != [*(tools or ())]:
                continue
            replies = _further(earlier, first.row["prompt"])
            if replies is not None:
                for call in request:
                    call.goes_on_from = earlier
                    if call.follows_all and call.follows(earlier):
                        call.parent, call.follows_all = earlier, False
                    if call.row.get("tools") is not tools:
                        call.row = {**call.row, "tools": tools}
                if not replies:
                    return earlier.context
                return sampler.extend(earlier.context, kept(replies))  # rewards read them later
        if first.tools:
            sampler.check_tools()
        return sampler.encode([first.row])[0]


def _give_up(requests: Sequence[Sequence[Call]], error: OverdueError) -> None:
    """Note that the sampler is late with the completions of these requests."""
    draws = sorted({request[0].episode.group.number for request in requests})
    count = sum(map(len, requests))
    terminal.say(
        f"note: {error}: {count} completions (of draw {', '.join(map(str, draws))}) are given up, "
        f"as failed samples"
    )
    for request in requests:
        request[0].error = OverdueError(str(error))


def _is_answered(request: Sequence[Call]) -> bool:
    return request[0].error is not None or all(call.is_drawn for call in request)


def _batches(calls: Sequence[Call], *, collective: bool) -> tuple[int, Sequence[Sequence[Call]]]:
    """The calls with the same prompt, group and name space together, if there are equally many of
    all, else each by itself; and how many there are.

    collective: whether this holds for all processes together.
    """

    def prompt(call: Call) -> tuple[int, Comparison, int, str]:
        return id(call.row), call.comparison, call.number, call.space

    batches = [[*same] for _, same in groupby(calls, key=prompt)]
    sizes = {len(batch) for batch in batches}
    if collective:
        sizes = set().union(*gather_object([sizes]))
    if len(sizes) > 1:
        return 1, [[call] for call in calls]
    return max(sizes, default=1), batches


def _further(earlier: Call, prompt: Any) -> str | Sequence[Mapping[str, Any]] | None:
    """What a prompt has after an earlier call's prompt and reply; None if it does not begin with
    these."""
    before, reply = earlier.row["prompt"], earlier.reply
    if reply is None or isinstance(prompt, str) != isinstance(before, str):
        return None
    if isinstance(prompt, str):
        if not reply.text and prompt == before:  # asked once more, not gone on
            return None
        text = before + reply.text
        return prompt[len(text) :] if prompt.startswith(text) else None
    count = len(before) + 1
    if not equal(prompt[:count], [*before, reply.message]):
        return None
    return prompt[count:] or None


def _write_rows(batch: Rollouts, calls: Sequence[Call], *, trained: bool) -> None:
    """The completions of these calls, in order, each a rollout of its own; trained: whether a
    policy is trained on them."""
    write(batch, [call.rollout for call in calls], trained=trained)
    for call in calls:
        rollout, call.is_drawn = call.rollout, True
        if rollout.failure is None:
            made = calls_of(rollout.completion)
            _count(call, made)
            call.reply = Reply(rollout.completion, call.label, rollout.truncated, made, source=call)


def _write_turns(
    pairs: Sequence[tuple[Any, Drawn]], calls: Sequence[Call], sampler: TurnSampler
) -> None:
    """The turns of these calls, in order, each with its context afterwards."""
    for call, (context, turn) in zip(calls, pairs, strict=True):
        call.context, call.drawn, call.is_drawn = context, turn, True
        if turn.ended != "failed":
            made, content = sampler.tool_calls(context)
            _count(call, made)
            if not made and call.row.get("tools"):
                call.unparsed = int(sampler.resembles_call(turn.text))
            cut = turn.ended == "length"
            call.reply = Reply(turn.text, call.label, cut, tuple(made), content, source=call)


def _count(call: Call, made: Sequence[ToolCall]) -> None:
    """Count the calls of tools in a turn."""
    call.parsed = sum(each.fault is None for each in made)
    call.unparsed = len(made) - call.parsed
