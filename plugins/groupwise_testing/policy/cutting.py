"""Laws of micro-batches: the gradient does not depend on how an update is cut."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from groupwise.policy import Microbatch
from groupwise_testing import compare
from groupwise_testing.laws import law
from groupwise_testing.policy.case import Case


def _splits(case: Case) -> Iterable[tuple[str, Sequence[Microbatch], bool]]:
    longest = int(case.rollouts.extents.max())
    for budget in (1, 2 * longest + 1, 10**9):
        for cut in (False, True):
            parts = case.policy.microbatches(case.rollouts, budget, cut_decisions=cut)
            yield f"microbatches(budget={budget}, cut_decisions={cut})", parts, cut


@law(
    "every decision is in one micro-batch, also behind holes of the mask",
    hint="`microbatches`: use `extents`, the position after the last decision, not `lengths`, the "
    "number of decisions",
)
def holes(case: Case) -> str | None:
    mask = case.rollouts.mask.cpu()
    for how, parts, cut in _splits(case):
        counts = torch.zeros(mask.shape, dtype=torch.int64)
        for rows, decisions in parts:
            width = case.rollouts.select(rows).mask.shape[1]
            places = torch.arange(width)[decisions]
            counts[rows.cpu().unsqueeze(1), places] += 1
        wrong = (counts != 1) & mask
        if bool(wrong.any()):
            row, place = wrong.nonzero()[0].tolist()
            return (
                f"{how}: {int(wrong.sum())} of {int(mask.sum())} decisions are not in exactly one "
                f"part; the one at position {place} of rollout {row} is in "
                f"{int(counts[row, place])}"
            )
        all_rows = torch.cat([rows.cpu() for rows, _ in parts])
        if not cut and len(all_rows) != len(all_rows.unique()):
            return f"{how}: a rollout is cut apart, which the loss does not allow"
    return None


@law(
    "`forward` of some decisions returns the same as for all",
    hint="`forward`: return the slice `decisions` of the outputs, computed with the context of the "
    "whole rollout",
)
def cut_apart(case: Case) -> str | None:
    rollouts, width = case.rollouts, case.rollouts.mask.shape[1]
    for decisions in (slice(0, (width + 1) // 2), slice((width + 1) // 2, width)):
        if decisions.start == decisions.stop:
            continue  # a single decision cannot be cut apart
        outputs = case.outputs(rollouts, decisions)
        sizes = {name: value.shape[1] for name, value in outputs.items()}
        expected = len(range(width)[decisions])
        if any(size != expected for size in sizes.values()):
            return f"for {expected} decisions, outputs have {sizes}"
        wrong = case.difference(outputs, rollouts.mask[:, decisions], columns=decisions)
        if wrong is not None:
            return f"for decisions {decisions.start} to {decisions.stop} alone, {wrong}"
    return None


@law(
    "the gradient does not depend on micro-batches",
    hint="`forward`: a rollout's outputs must not depend on others of its micro-batch (batch norm, "
    "means over rows), and must not be detached",
)
def microbatches(case: Case) -> str | None:
    whole = _gradient(case, [(torch.arange(len(case.rollouts)), slice(None))])
    if not bool(whole.isfinite().all()) or float(whole.norm()) == 0:
        return f"the gradient of all rollouts has norm {float(whole.norm()):g}"
    limit = 1e-3 if case.policy.exact else 0.1
    for how, parts, _ in _splits(case):
        gap = compare.direction_gap(_gradient(case, parts), whole)
        if gap > limit:
            return f"{how}: the gradient differs by {gap:.2g} of its norm, at most {limit:g}"
    return None


def _gradient(case: Case, parts: Iterable[Microbatch]) -> Tensor:
    """The gradient of the sum of all outputs, each decision with a factor of its own."""
    policy, rollouts = case.policy, case.rollouts
    places = torch.arange(rollouts.mask.numel(), dtype=torch.float32).view(rollouts.mask.shape)
    factors = torch.cos(places) + 0.5
    policy.zero_grad()
    for rows, decisions in parts:
        piece = rollouts.select(rows)
        columns = torch.arange(piece.mask.shape[1])[decisions]
        factor = factors[rows.cpu().unsqueeze(1), columns].masked_fill(
            ~piece.mask.cpu()[:, columns], 0.0
        )
        terms = [
            (value * factor.to(value).view(*factor.shape, *[1] * (value.ndim - 2))).sum()
            for value in policy(piece, decisions).outputs.values()
            if value.requires_grad
        ]
        if terms:
            torch.stack([term.float() for term in terms]).sum().backward()
    gradient = compare.gradient(policy)
    policy.zero_grad()
    return gradient


LAWS = (holes, cut_apart, microbatches)
