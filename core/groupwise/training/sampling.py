"""Sampling: the only place where completions are sampled: with the right weights and seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from groupwise.errors import UserError
from groupwise.policy import Policy
from groupwise.prompts.draws import Draw
from groupwise.prompts.seeds import seed_for
from groupwise.prompts.source import Row
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose, Sampler
from groupwise.training.threads import Threads
from groupwise.weights import KeptWeights

END = object()
"""What follows a sampler's last rollouts."""
PRESENT = "policy"
"""The name of the weights in training, for `Sampler.follow`."""


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
        self._followed: tuple[str, int] | None = None

    def forget(self) -> None:
        """Weights were loaded, so the sampler must follow them again."""
        self._followed = None

    def follow(self, weights: str | None, version: int) -> None:
        """Make the sampler follow these weights; nothing must be sampled at that time.

        weights: the name of kept weights, None for those in training; version: the training steps
        that the policy has made.
        """
        target = (weights or PRESENT, version)
        if target != self._followed:
            with self.weights.using(weights):
                self.sampler.follow(self.policy, *target)
            self._followed = target

    @property
    def greedy(self) -> bool:
        """Whether the policy has a greedy mode."""
        return self.policy.greedy

    def share(self, draws: Sequence[Draw]) -> Sequence[Draw]:
        """This process's share of the draws."""
        rank, world = self.process
        return draws[rank::world]

    def draw(
        self,
        draws: Sequence[Draw],
        size: int,
        *,
        space: str,
        purpose: Purpose,
        idle: bool = False,
    ) -> Iterator[Rollouts]:
        """`size` rollouts for each draw of this process's share, with the weights followed.

        idle: whether a process without a share samples the first draw anyway, for dummy passes.
        """
        ours = self.share(draws) or (draws[:1] if idle else [])
        most = len(draws[:: self.process[1]])
        return self.draw_own(ours, size, space=space, purpose=purpose, most=most, spare=draws[:1])

    def draw_own(
        self,
        ours: Sequence[Draw],
        size: int,
        *,
        space: str,
        purpose: Purpose,
        most: int,
        spare: Sequence[Draw],
    ) -> Iterator[Rollouts]:
        """`size` rollouts for each of these draws, this process's own.

        The seed of each is a function of (run seed, space, draw, index). Raises UserError if the
        sampler drew with other weights.

        most: the largest number of draws on any process; spare: a draw to sample and drop, since
        processes of a sharded policy must sample equally often.
        """
        due = [*ours, *self._filling(spare, most - len(ours))]
        each = max(1, self.batch // size)
        start = 0
        for rollouts in self._parts(due, size, space, purpose, most=each):
            count = min(each, max(0, len(ours) - start)) * size
            start += each
            if count:
                yield rollouts if count == len(rollouts) else rollouts.select(range(count))
            del rollouts  # else this frame holds them while the next ones are sampled

    def _filling(self, spare: Sequence[Draw], missing: int) -> Sequence[Draw]:
        """Draws to sample and drop: processes of a sharded policy must sample equally often."""
        is_collective = self.policy.mesh is not None and self.sampler is self.policy
        return [*spare] * missing if is_collective else []

    def _parts(
        self, draws: Sequence[Draw], size: int, space: str, purpose: Purpose, *, most: int
    ) -> Iterator[Rollouts]:
        """The sampler's rollouts in parts of `most` draws, checked, with versions and groups."""
        assert self._followed is not None
        name, version = self._followed
        own = self.sampler is self.policy and name != PRESENT
        seeds = [seed_for(self.seed, space, d.number, i) for d in draws for i in range(size)]
        stream = self.sampler.stream(
            [draw.row for draw in draws],
            group_size=size,
            seeds=seeds,
            purpose=purpose,
            most=most,
        )
        start = 0
        while True:  # to the end of the stream, where an engine lets its servers sleep
            if self.threads is not None:
                self.threads.adapt()
            with torch.no_grad(), self.weights.using(name if own else None):
                rollouts: Any = next(stream, END)
            if rollouts is END:
                break
            part = draws[start : start + most]
            rows = [draw.row for draw in part]
            self._check(rollouts, rows, size)
            if self.sampler is not self.policy:
                self._check_answers(rollouts, rows, size, trained_on=purpose == "train")
            versions = self._versions(rollouts, version)
            numbers = torch.tensor([draw.number for draw in part], device=rollouts.groups.device)
            own_seeds = seeds[start * size : (start + most) * size]
            yield replace(
                rollouts,
                groups=numbers.repeat_interleave(size),
                versions=versions,
                failures=_with_seeds(rollouts.failures, own_seeds),
            )
            del rollouts  # else this frame holds them while the next ones are sampled
            start += most
        if start < len(draws):
            raise UserError(
                f"{self._name} returned rollouts for {start} of {len(draws)} prompts: `stream` "
                f"must yield those of all prompts"
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
        if answered != due or not torch.equal(rollouts.groups.cpu(), numbers):
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

    def _versions(self, rollouts: Rollouts, followed: int) -> torch.Tensor:
        """[B] int64 on the CPU, all equal to the version followed."""
        if rollouts.versions is None and self.sampler is self.policy:
            return torch.full((len(rollouts),), followed, dtype=torch.int64)
        if rollouts.versions is None:
            raise UserError(
                f"{self._name} does not say which weights it sampled with: set `Rollouts.versions` "
                f"to the version that `follow` passed (now {followed})"
            )
        versions = rollouts.versions.cpu()
        odd = versions[versions != followed]
        if len(odd):
            raise UserError(
                f"{self._name} sampled with the weights of step {int(odd[0])}, expected those of "
                f"step {followed}, passed to `follow`; did something else change its weights?"
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
