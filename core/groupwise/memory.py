"""What a sharded model takes on a process beside its own part, for estimates of memory.

As FSDP2 works, per block: `torch.distributed.fsdp.fully_shard` of each block and of the whole.
"""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor, nn


def size(parameters: Iterable[Tensor], width: int | None = None) -> int:
    """Bytes of them, with `width` bytes to a number; as they are stored if None."""
    return sum(p.numel() * (width or p.element_size()) for p in parameters)


def gathered(model: nn.Module, width: int | None, *, training: bool) -> Mapping[str, int]:
    """Bytes of the buffers of gathered weights, by purpose.

    A pass holds two blocks, the one at work and the next, which is fetched meanwhile, and whatever
    lies outside of blocks (embeddings, the head), which stays until the pass ends. In training
    their gradients are as many, and those of one are held once more, in float32, while processes
    sum them.

    width: bytes of a number in the dtype that computes; None where weights compute as stored.
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
    """The repeated parts of a model: what its outermost lists of modules hold."""
    if isinstance(model, nn.ModuleList):
        yield from model
        return
    for part in model.children():
        yield from blocks(part)


def _trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [p for p in parameters if p.requires_grad]
