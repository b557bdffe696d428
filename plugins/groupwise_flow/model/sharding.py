"""Sharding the trained model among processes by torch's `fully_shard` (FSDP2).

No process ever holds all weights: the model is built without weights and sharded block by block,
then each process reads its shard of every weight. A forward pass gathers one block after the other,
a collective: every rank must make the same number of passes. With a mesh of two dimensions the
processes of each row divide the weights, and the rows are copies of each other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from groupwise.kit.errors import UserError, first_line
from groupwise_flow.model.precision import HALF, InFloat32
from groupwise_flow.settings import Precision


@contextmanager
def weightless(model: nn.Module) -> Iterator[None]:
    """The context in which meta weights are zeros on the CPU, expanded from one number.

    peft then creates its adapters as it would for real weights.
    """
    meta = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_meta
    ]
    for module, name, parameter in meta:
        zeros = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
        setattr(module, name, nn.Parameter(zeros, requires_grad=parameter.requires_grad))
    try:
        yield
    finally:
        for module, name, parameter in meta:
            parameter.requires_grad_(getattr(module, name).requires_grad)
            setattr(module, name, parameter)


def divide(model: nn.Module, mesh: DeviceMesh, precision: Precision) -> None:
    """Shard each block, and the rest of the model; weights are gathered only for a pass, in half
    precision if the run computes in it. Raises UserError for a model without blocks."""
    half = HALF.get(precision)
    # Inputs are not cast: autocast casts per operation, and bf16 cannot represent timestep 897.
    gathered = MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=half and torch.float32, cast_forward_inputs=False
    )
    for module in (*blocks(model), model):
        try:
            # Free the root's weights after a pass, too, which is not FSDP's default.
            fully_shard(module, mesh=mesh, mp_policy=gathered, reshard_after_forward=True)
        except (ValueError, NotImplementedError) as error:
            raise UserError(
                f"train.shard: torch cannot shard {type(module).__name__}: {first_line(error)}"
            ) from error
        InFloat32.exempt(module)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules of the classes in `_no_split_modules`; without that attribute, the
    items of ModuleLists whose modules are all of one class."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    chosen = list(_outermost(model, names))
    if not chosen:
        raise UserError(
            f"train.shard: {type(model).__name__} has no blocks to shard: no `_no_split_modules`, "
            f"and no list of modules of one class; leave train.shard out, and each process holds "
            f"the whole model"
        )
    return chosen


def _outermost(module: nn.Module, names: set[str]) -> Iterator[nn.Module]:
    alike = len({type(child) for child in module.children()}) == 1
    listed = not names and isinstance(module, nn.ModuleList) and alike
    for child in module.children():
        if listed or type(child).__name__ in names:
            if next(child.parameters(), None) is not None:
                yield child
        else:
            yield from _outermost(child, names)


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; a collective where it is sharded, so every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def largest(counts: Sequence[int], mesh: DeviceMesh | None) -> list[int]:
    """The maximum of each count over all ranks; a collective, with equally many counts each."""
    if mesh is None:
        return list(counts)
    values = torch.tensor(counts, device=mesh.device_type)
    for group in mesh.get_all_groups():
        distributed.all_reduce(values, distributed.ReduceOp.MAX, group=group)
    return values.tolist()
