"""Toy: a tiny policy in float64, which returns any output that an algorithm needs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.policy import Decisions, Microbatch, Outputs, Policy
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts, Turn
from groupwise.sampler import Purpose

Extra = Callable[[Tensor], Tensor]
"""From log-probs [b, t] to a further output [b, t, ...] of the toy."""

SYMBOLS, PLACES, WIDTH = 3, 6, 4
HOLE = slice(2, 4)
"""Positions of longer rollouts that are not decisions, as the tokens of a tool's answer."""


class Toy(Policy):
    """Draws one of three symbols at each position; all outputs are tables of parameters.

    Rollouts have 1 to 6 positions; those longer than `HOLE` have no decisions there, and two turns,
    one before it and one behind. Samples are uniform; with `spread` 0 the policy's distribution is
    uniform, too.

    Besides log-probs and entropy it returns `mean` [b, t, 4], `std` and `interval` [b, t], which do
    not depend on weights, `value` [b, t], and `extras`; of all these only what is asked for.

    cuts: whether `microbatches` cuts rollouts apart if that is allowed. behind: added to outputs at
    positions that are not decisions; infinite: their log-probs are infinite.
    """

    unit = "symbols"

    def __init__(self, *, spread: float, extras: Mapping[str, Extra]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def table(*shape: int) -> nn.Parameter:
            drawn = torch.randn(PLACES, SYMBOLS, *shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(spread * drawn)

        self.logits, self.means, self.values = table(), table(WIDTH), table()
        self.max_decisions = PLACES
        self.extras = extras
        self.cuts, self.behind, self.infinite = False, 0.0, False

    @property
    def provides(self) -> frozenset[str]:  # type: ignore[override]
        """All outputs that it can compute."""
        own = {"log_probs", "entropy", "mean", "std", "interval", "value"}
        return frozenset(own | set(self.extras))

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        rows = [row for row in prompts for _ in range(group_size)]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        symbols = torch.stack([torch.randint(SYMBOLS, (PLACES,), generator=g) for g in generators])
        lengths = torch.stack([torch.randint(1, PLACES + 1, (), generator=g) for g in generators])
        places = torch.arange(PLACES)
        mask = places < lengths.unsqueeze(1)
        # A rollout that ends before the end of the hole has none: its last position is a decision.
        mask[lengths > HOLE.stop, HOLE] = False
        even = -torch.tensor(float(SYMBOLS)).log()
        return Rollouts(
            prompts=rows,
            completions=["".join(map(str, row)) for row in symbols.tolist()],
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=mask,
            truncated=lengths == PLACES,
            turns=[_turns(own, row // group_size) for row, own in enumerate(mask.tolist())],
            sampler_log_probs=torch.where(mask, even, 0.0),
            trajectory={"symbols": symbols, "places": places.expand_as(symbols)},
        )

    def forward(
        self,
        rollouts: Rollouts,
        decisions: Decisions = slice(None),
        outputs: Outputs | None = None,
    ) -> LogProbs:
        symbols, places, mask = (
            value[:, decisions]
            for value in (rollouts.tensor("symbols"), rollouts.tensor("places"), rollouts.mask)
        )
        every = self.logits.log_softmax(dim=-1)[places]  # [b, t, symbols]
        log_probs = every.gather(-1, symbols.unsqueeze(-1)).squeeze(-1)
        computed = {
            "log_probs": log_probs,
            "entropy": -(every.exp() * every).sum(dim=-1),
            "mean": self.means[places, symbols],
            "std": 0.5 + 0.1 * places.double(),
            "interval": 0.1 + 0.01 * places.double(),
            "value": self.values[places, symbols],
            **{name: extra(log_probs) for name, extra in self.extras.items()},
        }
        if outputs is not None:
            computed = {name: value for name, value in computed.items() if name in outputs}
        for name, value in computed.items():
            # Added, not filled in, so that a gradient that is not finite there reaches the weights.
            added = torch.inf if self.infinite and name == "log_probs" else self.behind
            is_decision = mask.view(*mask.shape, *[1] * (value.ndim - 2))
            computed[name] = value + torch.where(is_decision, 0.0, added)
        return as_log_probs(computed)

    def microbatches(
        self, rollouts: Rollouts, budget: int, *, cut_decisions: bool
    ) -> Sequence[Microbatch]:
        parts = super().microbatches(rollouts, budget, cut_decisions=cut_decisions)
        if not (self.cuts and cut_decisions):
            return parts
        return [
            (rows, slice(start, min(start + 2, decisions.stop)))
            for rows, decisions in parts
            for start in range(0, decisions.stop, 2)
        ]


def _turns(mask: Sequence[bool], group: int) -> list[Turn]:
    """The turns of a rollout; the second ones of a group began in the same state."""
    before, behind = sum(mask[: HOLE.stop]), sum(mask[HOLE.stop :])
    second = [Turn(behind, state=2 * group + 1)] if behind else []
    return [Turn(before, state=2 * group), *second]


def as_log_probs(outputs: Mapping[str, Tensor]) -> LogProbs:
    """Outputs by name as a policy returns them."""
    extra = dict(outputs)
    log_probs, entropy = extra.pop("log_probs", None), extra.pop("entropy", None)
    return LogProbs(log_probs=log_probs, entropy=entropy, extra=extra)


def toy_scores(values: Sequence[float]) -> Scores:
    """Scores of a single reward."""
    return Scores(
        names=("reward",),
        weights=(1.0,),
        values=torch.tensor(values, dtype=torch.float64).unsqueeze(1),
        failed=torch.zeros(len(values), dtype=torch.bool),
    )
