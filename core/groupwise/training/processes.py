"""Processes: those of a run, and what they agree on: sums, means, whether any of them says so."""

import math
import os
from collections.abc import Mapping
from typing import TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import Tensor

from groupwise.errors import UserError

T = TypeVar("T")
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def accelerator() -> Accelerator:
    """Accelerate's view of this process.

    Raises UserError for processes that do not know of each other, each of which would be a run of
    its own in the same folder; for mixed precision, which would wrap training's forward pass and
    not sampling, where the two must compute alike; for gradient accumulation, by which accelerate
    would divide gradients that are already those of a whole update; and for sharded models, since
    sampling needs the whole.
    """
    launched = Accelerator()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" in os.environ and world != launched.num_processes:
        raise UserError(
            f"{world} processes were launched, and accelerate takes each for the only one: on a "
            f"CPU set ACCELERATE_USE_CPU=true"
        )
    if launched.distributed_type in SHARDED:
        raise UserError(
            f"accelerate is configured for {launched.distributed_type.value}, which is not "
            f"supported yet: the model must fit on one device, and several work by DDP "
            f"(--multi_gpu)"
        )
    if launched.mixed_precision != "no":
        raise UserError(
            f"accelerate is configured for {launched.mixed_precision} mixed precision, which would "
            f"hold in training and not in sampling; launch with --mixed_precision no and set "
            f"policy.precision, which holds for both"
        )
    if launched.gradient_accumulation_steps != 1:
        raise UserError(
            f"accelerate is configured for {launched.gradient_accumulation_steps} gradient "
            f"accumulation steps, by which it would divide every gradient; launch with "
            f"--gradient_accumulation_steps 1 (unset ACCELERATE_GRADIENT_ACCUMULATION_STEPS). How "
            f"much goes through the model at once is train.microbatch, and changes no gradient"
        )
    return launched


def means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean of each over all processes, NaN apart."""
    sums = {k: (float(v.nansum()), int((~v.isnan()).sum())) for k, v in values.items()}
    parts = gather_object([sums])
    found = {}
    for name in values:
        count = sum(part[name][1] for part in parts)
        found[name] = math.fsum(part[name][0] for part in parts) / count if count else math.nan
    return found


def of_first(value: T) -> T:
    """What the first process has; the others wait for it."""
    return cast(T, broadcast_object_list([value])[0])


def total(count: int) -> int:
    """The sum over all processes."""
    return sum(gather_object([count]))


def largest(count: int) -> int:
    return max(gather_object([count]))


def any_process(condition: bool) -> bool:
    """Whether it holds on any process: they must stop at the same step."""
    return any(gather_object([condition]))


def union(groups: Tensor) -> Tensor:
    """The different group numbers of all processes, ascending."""
    return torch.tensor(sorted(set(gather_object(groups.unique().tolist()))), dtype=torch.int64)
