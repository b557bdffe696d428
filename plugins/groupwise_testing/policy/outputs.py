"""Laws of a policy's outputs for its decisions."""

import math
import pickle
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from groupwise.record.gather import moved
from groupwise.rollouts import Rollouts
from groupwise_testing import compare
from groupwise_testing.laws import law
from groupwise_testing.policy.case import Case


@law(
    "`forward` returns what `provides` names",
    hint="`provides`, and the fields of the `LogProbs` that `forward` returns",
)
def provided(case: Case) -> str | None:
    policy, shape = case.policy, case.rollouts.mask.shape
    missing = policy.provides - set(case.whole)
    if missing:
        return f"`provides` names {sorted(missing)}, which `forward` does not return"
    for name, value in case.whole.items():
        if value.shape[:2] != shape:
            return f"{name} has shape {list(value.shape)}, expected it to begin with {list(shape)}"
        if not bool(value.isfinite().all()):
            return f"{name} is not finite everywhere; it must also be at padding"
        if name == "log_probs" and value.dtype not in (torch.float32, torch.float64):
            return f"log_probs are {value.dtype}, expected torch.float32"
    return None


@law(
    "the ratio is one",
    hint="the same code and precision in `sample` and `forward`: temperature, dropout, positions "
    "behind padding, which tokens are decisions",
)
def ratio(case: Case) -> str | None:
    return case.mismatch(case.whole.get("log_probs"), case.rollouts)


@law(
    "`forward` scores the distribution that `sample` draws from",
    hint="temperature, top-k, top-p: the distribution of `sample` must be that of `forward`, and "
    "`entropy` must be its entropy",
)
def drawn_from(case: Case) -> str | None:
    if not {"log_probs", "entropy"} <= set(case.whole):
        return None
    surprises, count = [], 0
    for batch in range(16):
        rollouts = case.sample(first=batch * 100_000)
        outputs = case.outputs(rollouts)
        surprise = -outputs["log_probs"] - outputs["entropy"]
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
    "padding changes no output",
    hint="what `forward` reads behind a rollout's last decision: attention, positions, sums over T",
)
def padding(case: Case) -> str | None:
    rollouts = case.rollouts
    places = torch.arange(rollouts.mask.shape[1])
    behind = places >= rollouts.extents.cpu().unsqueeze(1)
    trajectory = {name: _refilled(value, behind) for name, value in rollouts.trajectory.items()}
    return case.difference(case.outputs(replace(rollouts, trajectory=trajectory)))


def _refilled(column: Any, behind: Tensor) -> Any:
    """The column with other values at padding; bools are unchanged: they may be a padding mask."""
    timed = isinstance(column, Tensor) and column.ndim > 1
    if not timed or column.dtype == torch.bool or not bool(behind.any()):
        return column
    padding = behind.to(column.device).view(*behind.shape, *[1] * (column.ndim - 2))
    # Integers may be ids, so use valid ones, of the first decision.
    other = column[:, :1] if not column.is_floating_point() else column.new_tensor(7.0)
    return torch.where(padding, other, column)


@law(
    "selected and joined rollouts have the same outputs",
    hint="`trajectory`: only tensors with one entry per decision are [B, T, ...]; others must be "
    "lists of B tensors",
)
def selecting(case: Case) -> str | None:
    count = len(case.rollouts)
    halves = [case.rollouts.select(range(start, count, 2)) for start in (1, 0)]
    again = Rollouts.concat(halves)
    order = [*range(1, count, 2), *range(0, count, 2)]
    for joined, rows in ((again, order), (case.rollouts.select([count - 1]), [count - 1])):
        width = slice(0, joined.mask.shape[1])
        wrong = case.difference(case.outputs(joined), joined.mask, rows=rows, columns=width)
        if wrong is not None:
            return f"for rollouts selected{' and joined' if len(rows) > 1 else ''}, {wrong}"
    return None


@law(
    "rollouts that were sent to another process have the same outputs",
    hint="what `forward` reads must be in `prompts` or `trajectory`: completions and facts are not "
    "sent; or set `portable = False`",
)
def sent(case: Case) -> str | None:
    if not case.policy.portable:
        return None
    rollouts: Rollouts = pickle.loads(pickle.dumps(moved(case.rollouts, torch.device("cpu"))))
    return case.difference(case.outputs(moved(rollouts, case.rollouts.mask.device)))


LAWS = (provided, ratio, drawn_from, padding, selecting, sent)
