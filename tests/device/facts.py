"""Operations on the simulated device, one by one: what each costs, and which are refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from simulated import Device
from torch import nn

CPU = torch.arange(5)


def counted() -> dict[str, Callable[[], Any]]:
    z = torch.arange(5, device="cuda")
    return {
        "item": z[2].item,
        "bool": lambda: bool((z > 2).any()),
        "index of a list": lambda: [1, 2, 3][z[0]],
        "bound of a slice": lambda: z[: z[3]],
        "tolist": z.tolist,
        "to the CPU": z.cpu,
        "equal": lambda: torch.equal(z, z),
        "nonzero": (z > 2).nonzero,
        "unique": lambda: z.unique(return_inverse=True),
        "masked_select": lambda: z.masked_select(z > 2),
        "mask as an index": lambda: z[z > 2],
        "repeats of the device": lambda: z.repeat_interleave(z),
        "isin many": lambda: torch.isin(z, z.repeat(4)),
        "index of the CPU": lambda: z[torch.tensor([1, 2])],
        "upload": lambda: CPU.to("cuda"),
        "made of numbers": lambda: torch.tensor([1.0], device="cuda"),
        "new_tensor": lambda: z.new_tensor([1]),
        "mask filled by a number": lambda: z.clone().__setitem__(z > 2, 0),
        "repeats of a number": lambda: z.repeat_interleave(2),
        "isin few": lambda: torch.isin(z, z[:2]),
        "factory": lambda: torch.arange(3, device="cuda"),
        "to where it is": lambda: z.to("cuda"),
        "scalar of the CPU": lambda: z * torch.tensor(2),
        "nothing uploaded": lambda: torch.tensor([], device="cuda"),
        "iteration": lambda: list(z),
    }


def refused() -> dict[str, Callable[[], Any]]:
    z = torch.arange(5, device="cuda")
    return {
        "sum of both": lambda: z + CPU,
        "cat of both": lambda: torch.cat([z, CPU]),
        "stack with a scalar of the CPU": lambda: torch.stack([z[0], torch.tensor(1)]),
        "product with weights of the CPU": lambda: nn.Linear(5, 1)(z.float()),
        "index of the device into the CPU": lambda: CPU[z],
        "written to the CPU in place": lambda: torch.tensor(0).add_(z[0]),
        "gather by an index of the CPU": lambda: z.gather(0, CPU),
        "numpy": z.numpy,
        "numbers drawn there": lambda: torch.rand(3, device="cuda"),
    }


def error(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except (RuntimeError, TypeError) as problem:
        return str(problem)
    return None


def a_module_moves() -> bool:
    """Whether parameters stay the same objects, tied as before, with the gradients of the CPU."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    x = torch.randn(4, 3)
    module(x).sum().backward()
    expected = module[0].weight.grad.clone()
    optimizer.zero_grad()
    weight = module[0].weight
    module.to("cuda")
    module(x.to("cuda")).sum().backward()
    optimizer.step()
    identical = module[0].weight is module[1].weight is weight
    return identical and weight.is_cuda and torch.equal(weight.grad.cpu(), expected)


def main(folder: Path) -> None:
    with Device() as device:
        costs = {name: device.during(call) for name, call in counted().items()}
        result = {
            "costs": {name: [cost.reads, cost.uploads] for name, cost in costs.items()},
            "errors": {name: error(call) for name, call in refused().items()},
            "a module moves": a_module_moves(),
        }
    result["gone"] = not torch.cuda.is_available()
    (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
