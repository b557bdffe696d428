"""Sampling: the only place where completions are sampled: with the right weights and seeds."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from threading import BoundedSemaphore
from typing import Any, TypeVar

import torch

from groupwise.episodes.threads import Threads
from groupwise.kit.copies import equal
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

        Raises UserError if the sampler drew with other weights.

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
                rollouts: Any = next(stream, END)
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

        In a `session` of the sampler.
        """
        sampler = self.turn_sampler
        for start in range(0, len(contexts), self.batch):
            part = contexts[start : start + self.batch]
            self._adapt_threads()
            with self._calls, torch.no_grad():
                drawn = sampler.draw(
                    part,
                    seeds=seeds[start : start + self.batch],
                    limits=limits[start : start + self.batch],
                    purpose=purpose,
                )
            pairs = zip(part, drawn, strict=True)
            yield [(sampler.with_turn(context, turn), turn) for context, turn in pairs]

    @contextmanager
    def session(self) -> Iterator[None]:
        """A context in which `turns` are drawn, with the weights that are followed."""
        with self._drawing(), self.turn_sampler.session():
            yield

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
        self._check(rollouts, rows, size)
        if self.sampler is not self.policy:
            self._check_answers(rollouts, rows, size, trained_on=purpose == "train")
        return replace(
            rollouts,
            versions=self._versions(rollouts, oldest),
            failures=_with_seeds(rollouts.failures, [seed for own in seeds for seed in own]),
        )

    @property
    def _name(self) -> str:
        return f"sampler {type(self.sampler).__name__}"

    def _check(self, rollouts: Any, rows: Sequence[Row], size: int) -> None:
        """Raise UserError unless there are `size` rollouts for each row."""
        if not isinstance(rollouts, Rollouts):
            raise UserError(
                f"{self._name} returned {type(rollouts).__name__}, not groupwise.Rollouts"
            )
        if len(rollouts) != len(rows) * size:
            raise UserError(
                f"{self._name} returned {len(rollouts)} rollouts for {len(rows)} prompts with "
                f"group_size {size}: expected {len(rows) * size}"
            )

    def _check_answers(
        self, rollouts: Rollouts, rows: Sequence[Row], size: int, *, trained_on: bool
    ) -> None:
        """Raise UserError for rollouts in another order, or log-probs that are not finite.

        Not called for a policy that samples itself, since reading tensors waits for the device.
        """
        numbers = torch.arange(len(rows)).repeat_interleave(size)
        due = [rows[number]["prompt"] for number in numbers.tolist()]
        answered = [row.get("prompt") for row in rollouts.prompts]
        if not equal(answered, due) or not torch.equal(rollouts.groups.cpu(), numbers):
            raise UserError(
                f"{self._name} returned rollouts in another order than the prompts: those of a "
                f"prompt must be adjacent, and `Rollouts.groups` must number the prompts 0, 1, ..."
            )
        log_probs = rollouts.sampler_log_probs
        if trained_on and log_probs is not None:
            mask = rollouts.mask.cpu() & ~rollouts.failed.unsqueeze(1)
            decisions = log_probs.cpu()[mask]
            bad = decisions[~decisions.isfinite()]
            if len(bad):
                raise UserError(
                    f"{self._name}: sampler_log_probs of {len(bad)} of {len(decisions)} decisions "
                    f"are not finite, the first is {float(bad[0])}"
                )

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
