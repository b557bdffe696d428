"""Processes: what all processes of a run agree on: sums, means, and whether any of them says so."""

import math
from collections.abc import Mapping

import torch
from accelerate.utils import gather_object
from torch import Tensor


def means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean of each over all processes, NaN apart."""
    sums = {k: (float(v.nansum()), int((~v.isnan()).sum())) for k, v in values.items()}
    parts = gather_object([sums])
    found = {}
    for name in values:
        count = sum(part[name][1] for part in parts)
        found[name] = math.fsum(part[name][0] for part in parts) / count if count else math.nan
    return found


def total(count: int) -> int:
    """The sum over all processes."""
    return sum(gather_object([count]))


def largest(count: int) -> int:
    return max(gather_object([count]))


def agree(said: bool) -> bool:
    """Whether any process says so: they must stop at the same step."""
    return any(gather_object([said]))


def union(groups: Tensor) -> Tensor:
    """The different group numbers of all processes, ascending."""
    return torch.tensor(sorted(set(gather_object(groups.unique().tolist()))), dtype=torch.int64)
