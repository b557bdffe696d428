"""Reading a sharded model: each process reads its own rows of every weight."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from groupwise.kit.processes import shard_of


@torch.no_grad()
def read(model: nn.Module, files: Sequence[Path], device: torch.device | str) -> None:
    """Read meta weights and buffers from safetensors files, each process its own shards.

    Raises ValueError where a tensor is missing or has another shape.
    """
    from safetensors import safe_open

    unread = {name for name, parameter in model.named_parameters() if parameter.is_meta}
    unread |= {name for name, _ in model.named_buffers()}
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t)
    waiting = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if name in unread
    }
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in waiting.keys() & file.keys():
                stored, tensor = file.get_slice(name), waiting.pop(name)
                if stored.get_shape() != list(tensor.shape):
                    raise ValueError(
                        f"{name!r} is {stored.get_shape()} in {path.name}, and the configuration "
                        f"makes it {list(tensor.shape)}"
                    )
                if not isinstance(tensor, DTensor):
                    tensor.copy_(file.get_tensor(name))
                    continue
                own = tensor.to_local()
                start = _first_row(tensor)
                if len(own):
                    own.copy_(stored[start : start + len(own)])
    if waiting:
        raise ValueError(f"its files hold no weights {min(waiting)!r}")


def _first_row(tensor: DTensor) -> int:
    """This process's first row; rows are divided as by `torch.chunk`."""
    number, count = shard_of(tensor.device_mesh)
    rows = tensor.shape[0]
    return min(number * -(-rows // count), rows)
