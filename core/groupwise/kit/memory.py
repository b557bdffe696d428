"""What a policy's estimate of its memory depends on, and the buffers that FSDP2 needs on a process
beside its own shard.

The buffers are those of `torch.distributed.fsdp.fully_shard`, applied to each block and to the
whole model.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one process does with a policy at one time: while it samples, or while it updates.

    decisions: the micro-batch budget, 0 if nothing is updated at that time.
    rollouts: the most rollouts of an update on one process.
    group_size: rollouts of a prompt.
    sampled: rollouts that the policy samples at once, 0 if it samples nothing at that time.
    training: whether the run trains the policy, so that gradients and the optimizer are in memory.
    reference: whether a reference that does not move is kept.
    averages: the number of other copies of the weights: moving averages, a reference that moves.
    shards: the number of processes that weights, gradients and moments are divided among.
    """

    decisions: int
    rollouts: int
    group_size: int
    sampled: int
    training: bool
    reference: bool
    averages: int
    shards: int = 1


def size(parameters: Iterable[Tensor], width: int | None = None) -> int:
    """Bytes of the parameters, with `width` bytes per number; None: as they are stored."""
    return sum(p.numel() * (width or p.element_size()) for p in parameters)


def gathered(model: nn.Module, width: int | None, *, training: bool) -> Mapping[str, int]:
    """Bytes of the buffers of gathered weights, by purpose.

    A pass holds two gathered blocks, the current one and the next, which is prefetched, and the
    parameters outside of blocks (embeddings, the head) until the pass ends. In training, their
    gradients take as many bytes, and those of one unit once more in float32, for the
    reduce-scatter.

    width: bytes per number in the compute dtype; None if that is the dtype of the weights.
    """
    units = [list(block.parameters()) for block in blocks(model)]
    inside = {id(p) for unit in units for p in unit}
    outside = [p for p in model.parameters() if id(p) not in inside]
    largest = max(units, key=lambda unit: size(unit, width), default=[])
    at_once = [*outside, *largest, *largest]
    sizes = {"gathered blocks": size(at_once, width)}
    if training:
        summed = max(size(_trained(unit), 4) for unit in (outside, *units))
        sizes["gradients of gathered blocks"] = size(_trained(at_once), width) + summed
    return sizes


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The repeated blocks of a model: the items of its outermost `nn.ModuleList`s."""
    if isinstance(model, nn.ModuleList):
        yield from model
        return
    for part in model.children():
        yield from blocks(part)


def _trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [p for p in parameters if p.requires_grad]
