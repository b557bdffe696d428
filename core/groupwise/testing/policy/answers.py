"""Laws of what a policy says of its decisions."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from groupwise.rollouts import Rollouts
from groupwise.testing import compare
from groupwise.testing.law import law
from groupwise.testing.policy.case import Case


@law(
    "the forward answers what is provided",
    look="`provides`, and the fields of the `LogProbs` that `forward` returns",
)
def provided(case: Case) -> str | None:
    policy, shape = case.policy, case.rollouts.mask.shape
    needed = policy.provides if policy.needed is None else policy.provides & policy.needed
    missing = needed - set(case.whole)
    if missing:
        return f"`provides` names {sorted(missing)}, and the forward has none"
    for name, value in case.whole.items():
        if value.shape[:2] != shape:
            return f"{name} is {list(value.shape)}, expected {list(shape)} first"
        if not bool(value.isfinite().all()):
            return f"{name} is not finite everywhere; it must be at padding, too"
        if name == "log_probs" and value.dtype not in (torch.float32, torch.float64):
            return f"log_probs are {value.dtype}, expected torch.float32"
    return None


@law(
    "the ratio is one",
    look="the same code and precision in `sample` and `forward`: temperature, dropout, positions "
    "behind padding, what is counted as a decision",
)
def ratio(case: Case) -> str | None:
    sampled = case.rollouts.sampler_log_probs
    if sampled is None or "log_probs" not in case.whole:
        return "`exact` is True, and there are no log-probs" if case.policy.exact else None
    mask = case.rollouts.mask
    ours, theirs = (
        compare.at_decisions(v, mask).double() for v in (case.whole["log_probs"], sampled)
    )
    apart = (ours - theirs).abs().nan_to_num(nan=math.inf)
    kind = "largest" if case.policy.exact else "mean"
    value = float(apart.max() if case.policy.exact else apart.mean())
    if value > case.limit:
        return (
            f"the {kind} gap between the forward's log-probs and the sampler's is {value:.3g} "
            f"nats, at most {case.limit:g} is allowed"
        )
    return None


@law(
    "what is scored is what was drawn from",
    look="temperature, top-k, top-p: the distribution of `sample` must be that of `forward`, and "
    "`entropy` its entropy",
)
def drawn_from(case: Case) -> str | None:
    if not {"log_probs", "entropy"} <= set(case.whole):
        return None
    surprises, count = [], 0
    for batch in range(16):
        rollouts = case.sample(first=batch * 100_000)
        answers = case.answers(rollouts)
        surprise = -answers["log_probs"] - answers["entropy"]
        surprises.append(compare.at_decisions(surprise, rollouts.mask).double())
        count += len(surprises[-1])
        if count >= 512:
            break
    values = torch.cat(surprises)
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
    if abs(mean) > max(5 * error, 0.02):
        return (
            f"over {len(values)} decisions -log_prob exceeds the entropy by {mean:.3g} nats on "
            f"average, with a standard error of {error:.2g}; expected 0"
        )
    return None


@law(
    "padding reaches nothing",
    look="what `forward` reads behind a rollout's last decision: attention, positions, sums over T",
)
def padding(case: Case) -> str | None:
    rollouts = case.rollouts
    places = torch.arange(rollouts.mask.shape[1])
    behind = places >= rollouts.extents.cpu().unsqueeze(1)
    trajectory = {name: _refilled(value, behind) for name, value in rollouts.trajectory.items()}
    return case.apart(case.answers(replace(rollouts, trajectory=trajectory)))


def _refilled(column: Any, behind: Tensor) -> Any:
    """Other values at padding; records of bools are left alone, as they may say what padding is."""
    timed = isinstance(column, Tensor) and column.ndim > 1
    if not timed or column.dtype == torch.bool or not bool(behind.any()):
        return column
    there = behind.to(column.device).view(*behind.shape, *[1] * (column.ndim - 2))
    # Whole numbers may be ids, of which those of the first decisions are as good as any.
    other = column[:, :1] if not column.is_floating_point() else column.new_tensor(7.0)
    return torch.where(there, other, column)


@law(
    "selecting and joining keeps what was sampled",
    look="`trajectory`: a tensor [B, T, ...] goes by decisions, all else is a list of B tensors",
)
def selecting(case: Case) -> str | None:
    count = len(case.rollouts)
    halves = [case.rollouts.select(range(start, count, 2)) for start in (1, 0)]
    again = Rollouts.concat(halves)
    order = [*range(1, count, 2), *range(0, count, 2)]
    for joined, rows in ((again, order), (case.rollouts.select([count - 1]), [count - 1])):
        width = slice(0, joined.mask.shape[1])
        wrong = case.apart(case.answers(joined), joined.mask, rows=rows, columns=width)
        if wrong is not None:
            return f"of rollouts selected{' and joined' if len(rows) > 1 else ''}, {wrong}"
    return None


LAWS = (provided, ratio, drawn_from, padding, selecting)
