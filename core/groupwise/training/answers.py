"""Answers: samples the calls that wait for one player, as rows or turn by turn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any

from accelerate.utils import gather_object

from groupwise import processes
from groupwise.errors import UserError
from groupwise.prompts.seeds import seed_for
from groupwise.sampler import Purpose, TurnSampler
from groupwise.training.assembly import Assembly
from groupwise.training.calls import Call, Request, further
from groupwise.training.sampling import Prompt, Sampling


class Answers:
    """Samples completions of one player for a batch of episodes, and gives them to `assembly`.

    space: of the seeds; spare: a row to sample and drop where other processes of a sharded policy
    have more prompts; multi_turn: of the environment: whether
    calls are drawn turn by turn, if the sampler can.
    """

    def __init__(
        self,
        sampling: Sampling,
        assembly: Assembly,
        *,
        space: str,
        purpose: Purpose,
        spare: Mapping[str, Any],
        multi_turn: bool,
    ) -> None:
        self.sampling, self.assembly = sampling, assembly
        self.space, self.spare = space, spare
        self.purpose: Purpose = purpose
        if purpose == "greedy" and not sampling.greedy:
            self.purpose = "evaluate"
        self.by_turns = multi_turn and isinstance(sampling.sampler, TurnSampler)

    @property
    def is_collective(self) -> bool:
        """Whether all processes must sample equally often."""
        return self.sampling.is_collective and not self.by_turns

    def session(self) -> AbstractContextManager[None]:
        """The context in which all calls of the batch are sampled."""
        return self.sampling.session() if self.by_turns else nullcontext()

    def to(self, requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
        """Sample the completions of these requests; yields those that are answered."""
        left = [*requests]
        for _ in self._turns(left) if self.by_turns else self._rows(left):
            yield [request for request in left if request.is_answered]
            left = [request for request in left if not request.is_answered]

    def _seed(self, call: Call) -> int:
        return seed_for(self.sampling.seed, self.space + call.space, call.number, call.index)

    def _rows(self, requests: Sequence[Request]) -> Iterator[None]:
        """Each call as a row; yields after each part that was sampled."""
        if any(request.limit is not None for request in requests):
            name = type(self.sampling.sampler).__name__
            raise UserError(
                f"the environment limits a completion, which {name} does not support: it samples "
                f"whole completions"
            )
        is_collective = self.is_collective
        calls = [call for request in requests for call in request.calls]
        size, batches = _batches(calls, collective=is_collective)
        prompts = [Prompt(own[0].row, own[0].group, [*map(self._seed, own)]) for own in batches]
        spares = [seed_for(self.sampling.seed, f"{self.space} spare", 0, n) for n in range(size)]
        drawn = self.sampling.draw(
            prompts,
            purpose=self.purpose,
            most=processes.largest(len(prompts)) if is_collective else None,
            spare=Prompt(self.spare, 0, spares),
        )
        ordered, start = [call for batch in batches for call in batch], 0
        for rollouts in drawn:
            self.assembly.add(rollouts, ordered[start : start + len(rollouts)])
            start += len(rollouts)
            del rollouts  # else this frame holds them while the next ones are sampled
            yield

    def _turns(self, requests: Sequence[Request]) -> Iterator[None]:
        """The next turn of each call's context; yields after each part that was drawn."""
        sampler = self.sampling.turn_sampler
        calls, contexts, limits = list[Call](), list[Any](), list[int]()
        for request in requests:
            context = self._context(request)
            room, count = sampler.room(context), len(request.calls)
            request.refused = room < 1
            if request.refused and (earlier := request.calls[0].goes_on_from) is not None:
                earlier.is_cut = True
            if not request.refused:
                calls += request.calls
                contexts += [context] * count
                limits += [min(room, request.limit or room)] * count
        seeds, start = [self._seed(call) for call in calls], 0
        for pairs in self.sampling.turns(contexts, seeds, limits, purpose=self.purpose):
            self.assembly.add_turns(pairs, calls[start : start + len(pairs)])
            start += len(pairs)
            yield
        if any(request.refused for request in requests):
            yield

    def _context(self, request: Request) -> Any:
        """The context of a request: that of the player's latest call in the episode whose context
        its prompt begins with, or a new one."""
        first, sampler = request.calls[0], self.sampling.turn_sampler
        for earlier in reversed(first.episode.calls):
            if earlier.label != first.label or earlier.context is None:
                continue
            replies = further(earlier, first.row["prompt"])
            if replies is not None:
                for call in request.calls:
                    call.goes_on_from = earlier
                return sampler.extend(earlier.context, replies) if replies else earlier.context
        return sampler.encode([first.row])[0]


def _batches(calls: Sequence[Call], *, collective: bool) -> tuple[int, Sequence[Sequence[Call]]]:
    """The calls with the same prompt, group and name space together, if there are equally many of
    all, else each by itself; and how many there are.

    collective: whether this holds for all processes together.
    """

    def prompt(call: Call) -> tuple[int, int, int, str]:
        return id(call.row), call.group, call.number, call.space

    batches = [[*same] for _, same in groupby(calls, key=prompt)]
    sizes = {len(batch) for batch in batches}
    if collective:
        sizes = set().union(*gather_object([sizes]))
    if len(sizes) > 1:
        return 1, [[call] for call in calls]
    return max(sizes, default=1), batches
