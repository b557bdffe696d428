"""Sampling: the only place where completions are sampled: with the right weights and seeds."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from threading import BoundedSemaphore
from typing import Any, TypeVar

import torch

from groupwise.episodes.answers import check, check_answers
from groupwise.episodes.spreading import Wanted, spread
from groupwise.episodes.threads import Threads
from groupwise.episodes.timed_calls import TimedCalls
from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.prompt_source import Row
from groupwise.rollouts import Rollouts
from groupwise.sampler import PRESENT, GroupSampler, Purpose, Sampler, TurnSampler
from groupwise.weights import KeptWeights

T = TypeVar("T")
END = object()
"""What follows a sampler's last rollouts."""


class Sampling:
    """Draws rollouts for a run, in training and in evaluation.

    Before sampling it makes the sampler follow the right weights, unless it follows them already;
    afterwards it checks that the rollouts are of those weights. All processes must call its methods
    in the same order.

    weights: the policy's kept weights, for its learner to keep; seed: of the run; batch: the most
    rollouts in a part; process: rank and number of the processes
    that share the draws; threads: set by the load before each part.
    """

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        *,
        seed: int,
        batch: int,
        process: tuple[int, int] = (0, 1),
        threads: Threads | None = None,
    ) -> None:
        self.policy, self.sampler, self.seed, self.batch = policy, sampler, seed, batch
        self.weights = KeptWeights(policy)
        self.process, self.threads = process, threads
        # What is followed, and what it is about to follow.
        self._followed: tuple[str, int] | None = None
        self._following: tuple[str, int] | None = None
        self._calls = BoundedSemaphore(sampler.concurrency)
        # In the run's own thread, whose number of torch's threads counts, there is no deadline.
        self._owner = threading.get_ident()
        self._timed: TimedCalls | None = None
        if sampler is not policy and math.isfinite(sampler.timeout):
            self._timed = TimedCalls(self._name, most=sampler.concurrency, seconds=sampler.timeout)

    def forget(self) -> None:
        """Weights were loaded, so the sampler must follow them again."""
        self._followed = None

    def follow(self, weights: str | None, version: int) -> None:
        """Make the sampler follow these weights; nothing must be sampled at that time, unless it
        `follows_in_flight`.

        weights: the name of kept weights, None for those in training; version: the training steps
        that the policy has made.
        """
        target = (weights or PRESENT, version)
        if target != self._followed:
            self._following = target
            with self.weights.using(weights):
                self.sampler.follow(self.policy, *target)
            self._followed = target

    def follows(self, weights: str | None, version: int) -> bool:
        """Whether the sampler follows these weights already."""
        return self._followed == (weights or PRESENT, version)

    @property
    def version(self) -> int:
        """Of the weights that are followed, which are the oldest that draw what begins now."""
        return -1 if self._followed is None else self._followed[1]

    def share(self, groups: Sequence[T]) -> Sequence[T]:
        """This process's share of the groups."""
        rank, world = self.process
        return groups[rank::world]

    def draw(
        self,
        rows: Sequence[Row],
        seeds: Sequence[Sequence[int]],
        *,
        purpose: Purpose,
        group_seeds: Sequence[int] | None = None,
        most: int | None = None,
    ) -> Iterator[Rollouts]:
        """Rollouts of these rows, of each as many as it has seeds; equally many of all.

        Raises UserError if the sampler drew with other weights, and OverdueError if a call is late
        that is made beside the run.

        group_seeds: of each row, one that is the same for all rollouts that are compared with its
        own; most: draw these rows alone, of which the others are dropped, since processes of a
        sharded policy must sample equally often; all if unset.
        """
        if not rows:
            return
        oldest = self.version
        size, most = len(seeds[0]), len(rows) if most is None else most
        each = max(1, self.batch // size)
        shared: dict[str, Any] = {}
        if isinstance(self.sampler, GroupSampler):
            shared["group_seeds"] = group_seeds
        stream = self.sampler.stream(
            rows,
            group_size=size,
            seeds=[seed for own in seeds for seed in own],
            purpose=purpose,
            most=each,
            **shared,
        )
        start = 0
        while True:  # to the end of the stream, where an engine lets its servers sleep
            self._adapt_threads()
            with torch.no_grad(), self._drawing():
                rollouts: Any = self._called(partial(next, stream, END))
            if rollouts is END:
                break
            part = slice(start, start + each)
            rollouts = self._checked(rollouts, rows[part], seeds[part], purpose, oldest)
            count = min(each, max(0, most - start)) * size
            start += each
            if count:
                yield rollouts if count == len(rollouts) else rollouts.select(range(count))
            del rollouts  # else this frame holds them while the next ones are sampled
        if start < len(rows):
            raise UserError(
                f"{self._name} returned rollouts for {start} of {len(rows)} prompts: `stream` "
                f"must yield those of all prompts"
            )

    def spread(
        self,
        rows: Sequence[Row],
        seeds: Sequence[Sequence[int]],
        *,
        purpose: Purpose,
        group_seeds: Sequence[int],
        dummy: Row,
    ) -> Iterator[Rollouts]:
        """As `draw`, sampled by all processes together. A collective.

        dummy: of a row that is sampled and dropped where others of a sharded policy sample more.
        """
        each = max(1, self.batch // len(seeds[0])) if seeds else 1
        for number in range(processes.largest(-(-len(rows) // each))):
            part = slice(number * each, (number + 1) * each)
            pairs = zip(rows[part], seeds[part], group_seeds[part], strict=True)
            wanted = [Wanted(row, seed, shared) for row, own, shared in pairs for seed in own]
            self._adapt_threads()
            with torch.no_grad(), self._drawing():
                rollouts = spread(wanted, partial(self._apart, purpose=purpose, dummy=dummy))
            if rollouts is not None:
                yield self._checked(rollouts, rows[part], seeds[part], purpose, self.version)
            del rollouts

    def _apart(
        self, wanted: Sequence[Wanted], most: int, *, purpose: Purpose, dummy: Row
    ) -> Rollouts | None:
        """These completions, each by itself; None for none."""
        missing = most - len(wanted) if self.is_collective else 0
        every = [*wanted, *[Wanted(dummy, 0, 0)] * missing]
        if not every:
            return None
        rows, seeds, group_seeds = map(list, zip(*every, strict=True))
        shared = {"group_seeds": group_seeds} if isinstance(self.sampler, GroupSampler) else {}
        return self.sampler.sample(rows, group_size=1, seeds=seeds, purpose=purpose, **shared)

    # ---- turn by turn

    def turns(
        self,
        contexts: Sequence[Any],
        seeds: Sequence[int],
        limits: Sequence[int],
        *,
        purpose: Purpose,
    ) -> Iterator[list[Any]]:
        """For each context the one after its next turn, and the turn, in parts of `batch`.

        In a `session` of the sampler. Raises OverdueError beside the run, if a call is late.
        """
        sampler = self.turn_sampler
        for start in range(0, len(contexts), self.batch):
            part = contexts[start : start + self.batch]
            self._adapt_threads()
            draw = partial(
                sampler.draw,
                part,
                seeds=seeds[start : start + self.batch],
                limits=limits[start : start + self.batch],
                purpose=purpose,
            )
            with self._calls:
                drawn = self._called(draw)
            pairs = zip(part, drawn, strict=True)
            yield [(sampler.with_turn(context, turn), turn) for context, turn in pairs]

    @contextmanager
    def session(self) -> Iterator[None]:
        """A context in which `turns` are drawn, with the weights that are followed."""
        with self._drawing(), self.turn_sampler.session():
            yield

    def _called(self, call: Callable[[], T]) -> T:
        """What a call of the sampler returns. Raises OverdueError beside the run, if it is late."""
        if self._timed is not None and threading.get_ident() != self._owner:
            return self._timed(call)
        with torch.no_grad():
            return call()

    def _drawing(self) -> AbstractContextManager[None]:
        """A context in which the policy, if it is its own sampler, has the weights that are
        followed."""
        assert self._followed is not None
        name, _ = self._followed
        samples_itself = self.sampler is self.policy and name != PRESENT
        return self.weights.using(name if samples_itself else None)

    def _adapt_threads(self) -> None:
        if self.threads is not None:
            self.threads.adapt()

    def assemble(self, rows: Sequence[Row], contexts: Sequence[Any], oldest: int) -> Rollouts:
        """The rollouts of these contexts, checked, with versions; oldest: the one that was followed
        when the first of their turns began."""
        rollouts = self.turn_sampler.assemble(rows, contexts, groups=range(len(rows)))
        return replace(rollouts, versions=self._versions(rollouts, oldest))

    @property
    def turn_sampler(self) -> TurnSampler:
        assert isinstance(self.sampler, TurnSampler)
        return self.sampler

    @property
    def spreads(self) -> bool:
        """Whether the completions of a group may be sampled by several processes."""
        own = self.sampler is self.policy and self.policy.samples_apart
        return own and self.process[1] > 1

    @property
    def needs_every_process(self) -> bool:
        """Whether collectives of sampling, of a sharded policy or an engine, may need those without
        a prompt of their own; those of `spread` do not."""
        return not self.spreads and (self.is_collective or self.sampler is not self.policy)

    @property
    def is_collective(self) -> bool:
        """Whether all processes must sample equally often: the policy is sharded."""
        return self.policy.mesh is not None and self.sampler is self.policy

    def _checked(
        self,
        rollouts: Any,
        rows: Sequence[Row],
        seeds: Sequence[Sequence[int]],
        purpose: Purpose,
        oldest: int,
    ) -> Rollouts:
        """The sampler's rollouts for these rows, with versions; oldest: as of `assemble`."""
        size = len(seeds[0])
        check(self._name, rollouts, rows, size)
        if self.sampler is not self.policy:  # else reading tensors would wait for the device
            check_answers(self._name, rollouts, rows, size, trained_on=purpose == "train")
        return replace(
            rollouts,
            versions=self._versions(rollouts, oldest),
            failures=_with_seeds(rollouts.failures, [seed for own in seeds for seed in own]),
        )

    @property
    def _name(self) -> str:
        return f"sampler {type(self.sampler).__name__}"

    def _versions(self, rollouts: Rollouts, oldest: int) -> torch.Tensor:
        """[B] int64 on the CPU, none older than the one that was followed when the draw began, and
        none newer than the one that is followed now: both are one, unless it follows in flight."""
        assert self._following is not None
        _, followed = self._following
        if rollouts.versions is None and self.sampler is self.policy:
            return torch.full((len(rollouts),), followed, dtype=torch.int64)
        if rollouts.versions is None:
            raise UserError(
                f"{self._name} does not say which weights it sampled with: set `Rollouts.versions` "
                f"to the version that `follow` passed (now {followed})"
            )
        versions = rollouts.versions.cpu()
        odd = versions[(versions < oldest) | (versions > followed)]
        if len(odd):
            since = f"{oldest} to {followed}" if oldest < followed else f"{followed}"
            raise UserError(
                f"{self._name} sampled with the weights of step {int(odd[0])}, expected those of "
                f"step {since}, passed to `follow`; did something else change its weights?"
            )
        return versions


def _with_seeds(
    failures: Sequence[str | None] | None, seeds: Sequence[int]
) -> list[str | None] | None:
    """The reasons with the seed of each sample, so that it can be drawn again."""
    if failures is None:
        return None
    pairs = zip(failures, seeds, strict=True)
    return [None if reason is None else f"{reason} (seed {seed})" for reason, seed in pairs]
