"""Checkpoints: everything a run needs to go on as if it had never stopped; no pickle in it.

A sample's randomness is a function of its name (seed, draw, index), so there is no generator to
save: weights, the optimizer's state, the position in the prompts and the step are all.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groupwise.average import Average
from groupwise.errors import UserError

NAME = "last"
FORMER = "last.old"
"""Where the previous checkpoint is while the new one takes its name."""


def save_checkpoint(
    folder: Path,
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    average: Average | None = None,
) -> Path:
    """Write folder/last, replacing the previous one only when the new one is whole."""
    target, fresh, former = folder / NAME, folder / f"{NAME}.new", folder / FORMER
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file(_trained(policy), fresh / "weights.safetensors")
    save_file(_optimizer_tensors(optimizer), fresh / "optimizer.safetensors")
    if average is not None:
        save_file(_on_cpu(average.tensors()), fresh / "average.safetensors")
    (fresh / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    if target.exists():
        # Renamed, not removed: at no moment may a kill leave less than one whole checkpoint.
        shutil.rmtree(former, ignore_errors=True)
        target.rename(former)
    fresh.rename(target)
    shutil.rmtree(former, ignore_errors=True)
    return target


def load_checkpoint(
    folder: Path,
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average | None = None,
) -> Mapping[str, Any]:
    """Restore weights, optimizer and average in place; return the state.

    Raises UserError where there is no checkpoint, or one of another model.
    """
    source, state = _whole(folder), read_state(folder)
    weights = load_file(source / "weights.safetensors")
    trained = dict(_named(policy))
    if trained.keys() != weights.keys():
        odd = sorted(trained.keys() ^ weights.keys())[0]
        raise UserError(f"the checkpoint in {folder} is of another model: they differ in {odd!r}")
    for name, parameter in trained.items():
        if parameter.shape != weights[name].shape:
            raise UserError(
                f"the checkpoint in {folder} is of another model: {name!r} is "
                f"{list(weights[name].shape)} there and {list(parameter.shape)} here"
            )
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(weights[name])
    _restore_optimizer(optimizer, load_file(source / "optimizer.safetensors"))
    if average is not None:
        if not (source / "average.safetensors").exists():
            raise UserError(f"train.ema: the checkpoint in {folder} has no averaged weights")
        average.restore(load_file(source / "average.safetensors"))
    return state


def read_state(folder: Path) -> Mapping[str, Any]:
    """What was saved beside the weights; UserError where there is no checkpoint."""
    path = _whole(folder) / "state.json"
    if not path.exists():
        raise UserError(f"no checkpoint in {folder}")
    state: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return state


def _whole(folder: Path) -> Path:
    """The last checkpoint; the former one where a kill came between the two renames."""
    return folder / (NAME if (folder / NAME).exists() else FORMER)


def _named(policy: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in policy.named_parameters() if p.requires_grad]


def _trained(policy: nn.Module) -> dict[str, Tensor]:
    return _on_cpu(dict(_named(policy)))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state, flattened: "3/exp_avg" is the first moment of the fourth parameter."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}/{name}": torch.as_tensor(value).detach().cpu().contiguous()
        for index, values in state.items()
        for name, value in values.items()
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
