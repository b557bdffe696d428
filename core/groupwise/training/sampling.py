"""Sampling: the one place where completions are drawn: by the right weights, under their names."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
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

PRESENT = "policy"
"""What `Sampler.follow` calls the weights in training."""


class Sampling:
    """Draws rollouts for a run, in training and in evaluation.

    Before it draws, it has the sampler follow the weights that are wanted, unless it follows them
    already; afterwards it checks that the rollouts are of those. All processes must call it alike.

    seed: of the run; batch: the most rollouts sampled at once.
    """

    def __init__(self, policy: Policy, sampler: Sampler, *, seed: int, batch: int) -> None:
        self.policy, self.sampler, self.seed, self.batch = policy, sampler, seed, batch
        self._followed: tuple[str, int] | None = None

    def forget(self) -> None:
        """Weights were loaded: what the sampler follows is out of date."""
        self._followed = None

    def follow(self, weights: str | None, version: int) -> None:
        """Have the sampler follow these weights; nothing must be in flight.

        weights: the name they are kept by, None for those in training; version: the training steps
        that the policy has made.
        """
        wanted = (weights or PRESENT, version)
        if wanted != self._followed:
            with self.policy.using(weights) if weights else nullcontext():
                self.sampler.follow(self.policy, *wanted)
            self._followed = wanted

    def draw(
        self, draws: Sequence[Draw], size: int, *, space: str, purpose: Purpose
    ) -> Iterator[Rollouts]:
        """`size` rollouts of each draw, by the weights that are followed.

        Each is named by (seed, space, draw, index). Raises UserError where the sampler drew with
        other weights.
        """
        assert self._followed is not None
        name, version = self._followed
        own = self.sampler is self.policy and name != PRESENT
        each = max(1, self.batch // size)
        for start in range(0, len(draws), each):
            chunk = draws[start : start + each]
            seeds = [
                seed_for(self.seed, space, draw.number, i) for draw in chunk for i in range(size)
            ]
            with torch.no_grad(), self.policy.using(name) if own else nullcontext():
                rollouts = self.sampler.sample(
                    [draw.row for draw in chunk], group_size=size, seeds=seeds, purpose=purpose
                )
            self._check(rollouts, [draw.row for draw in chunk], size, purpose)
            numbers = torch.tensor([draw.number for draw in chunk], device=rollouts.groups.device)
            yield replace(
                rollouts,
                groups=numbers.repeat_interleave(size),
                versions=self._versions(rollouts, version),
            )

    def _check(self, rollouts: Any, rows: Sequence[Row], size: int, purpose: Purpose) -> None:
        """Raise UserError where these are not the rollouts that were asked for.

        A policy that samples itself is trusted with more: to look would be to wait for the device.
        """
        kind, wanted = f"sampler {type(self.sampler).__name__}", len(rows) * size
        if not isinstance(rollouts, Rollouts):
            raise UserError(f"{kind} returned {type(rollouts).__name__}, not groupwise.Rollouts")
        if len(rollouts) != wanted:
            raise UserError(
                f"{kind} returned {len(rollouts)} rollouts for {len(rows)} prompts, and group_size "
                f"was {size}: {wanted} are due"
            )
        if self.sampler is self.policy:
            return
        numbers = torch.arange(len(rows)).repeat_interleave(size)
        answered = [row.get("prompt") for row in rollouts.prompts]
        if answered != [rows[number]["prompt"] for number in numbers.tolist()] or not torch.equal(
            rollouts.groups.cpu(), numbers
        ):
            raise UserError(
                f"{kind} returned rollouts in another order than that of the prompts: those of a "
                f"prompt must be adjacent, and `Rollouts.groups` number the prompts 0, 1, ..."
            )
        said = rollouts.sampler_log_probs
        if purpose == "train" and said is not None:
            bad = ~said.isfinite() & rollouts.mask.to(said.device)
            if bool(bad.any()):
                raise UserError(
                    f"{kind}: sampler_log_probs of {int(bad.sum())} of {int(rollouts.mask.sum())} "
                    f"decisions are not finite, the first is {float(said[bad][0])}"
                )

    def _versions(self, rollouts: Rollouts, followed: int) -> torch.Tensor:
        """[B] int64 on the CPU, all of them the version that is followed."""
        if rollouts.versions is None and self.sampler is self.policy:
            return torch.full((len(rollouts),), followed, dtype=torch.int64)
        kind = type(self.sampler).__name__
        if rollouts.versions is None:
            raise UserError(
                f"sampler {kind} does not say which weights it drew with: `Rollouts.versions` must "
                f"be the version that `follow` passed ({followed} by now)"
            )
        versions = rollouts.versions.cpu()
        if bool((versions != followed).any()):
            odd = versions[versions != followed][0]
            raise UserError(
                f"sampler {kind} drew with the weights of step {int(odd)}, and those of step "
                f"{followed} were to be followed; were weights changed behind its back?"
            )
        return versions
