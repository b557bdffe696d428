"""Saved: a checkpoint that was read, and its weights in a policy of now."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.storage.disk import read_json, reason
from groupwise.storage.inventory import files_in, problem
from groupwise.storage.state import decode
from groupwise.storage.tensors import Stored, files_of
from groupwise.weights import kept_parameters

KEPT = "kept_"
"""Prefix of the files of kept weights, such as `kept_average`."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The content of a checkpoint that was read; its tensors are loaded lazily.

    passed: what is wrong with later checkpoints, which were skipped.
    """

    tensors: Mapping[str, Stored]
    state: Mapping[str, Any]
    passed: tuple[str, ...] = ()


def read(folder: Path, names: Collection[str] | None) -> Saved:
    """Read a checkpoint. Raises OSError, ValueError or SafetensorError if it is damaged."""
    files = files_of(files_in(folder))
    chosen = [name for name in files if names is None or name in {*names, "state"}]
    tensors = {name: Stored([folder / file for file in files[name]]) for name in chosen}
    try:
        state = decode(read_json(folder / "state.json"), tensors.get("state", {}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"state.json refers to a missing tensor: {error}") from error
    if not isinstance(state, dict) or state.get("step", step_of(folder)) != step_of(folder):
        raise ValueError("state.json is not of this step")
    return Saved(tensors=tensors, state=state)


def examined(
    path: Path, names: Collection[str] | None, check: Callable[[Mapping[str, Any]], None]
) -> str | None:
    """What is wrong with a checkpoint, by this process's share of its files; None if nothing is.

    Checksums, and whether numbers are finite, take as long as reading the files: so process r of n
    examines every n-th file, and all of them together the whole.
    """
    rank, count = PartialState().process_index, PartialState().num_processes
    try:
        own = sorted(files_in(path))[rank::count]
        odd = problem(path, contents=own)
        if odd is None:
            saved = read(path, names)
            _check_finite(saved, own)
            check(saved.state)
    except (OSError, ValueError, SafetensorError) as error:
        return reason(error)
    return odd


def _check_finite(saved: Saved, files: Collection[str]) -> None:
    """Raise ValueError for weights or moments in these files that are not finite; reads them all.

    Tensors in the state of rewards or algorithms may have any value.
    """
    for name, tensors in saved.tensors.items():
        for path in tensors.paths if name != "state" else ():
            if path.name in files:
                with safe_open(path, "pt") as file:
                    for key in file.keys():  # noqa: SIM118 - it is no mapping
                        if not bool(file.get_tensor(key).isfinite().all()):
                            raise ValueError(f"{key!r} in {path.name} is not finite")


def read_weights(policy: Policy, saved: Saved, *, kept: str | None = None) -> None:
    """Copy a checkpoint's weights, or those kept under a name, into the policy's parameters.

    Raises UserError if it is of another model, or has no such weights.
    """
    name = f"{KEPT}{kept}" if kept else "weights"
    if name not in saved.tensors:
        raise UserError(f"the checkpoint has no weights{f' named {kept!r}' if kept else ''}")
    trained = kept_parameters(policy) if kept else trained_weights(policy)
    with torch.no_grad():
        for key, weight in as_here(trained, saved.tensors[name]).items():
            trained[key].copy_(weight)


def as_here(here: Mapping[str, Tensor], there: Stored) -> dict[str, Tensor]:
    """A checkpoint's tensors, sharded like those of the model here.

    Raises UserError if names or shapes differ.
    """
    if here.keys() != there.keys():
        odd = min(here.keys() ^ there.keys())
        raise UserError(f"the checkpoint is of another model: only one of the two has {odd!r}")
    for name, tensor in here.items():
        if tuple(tensor.shape) != there.shape(name):
            raise UserError(
                f"the checkpoint is of another model: {name!r} has shape "
                f"{list(there.shape(name))} there and {list(tensor.shape)} here"
            )
    return {name: there.like(name, tensor) for name, tensor in here.items()}


def trained_weights(policy: nn.Module) -> Mapping[str, Tensor]:
    """The trained parameters, by name."""
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder, finished or `.new`; -1 for anything else.

    So a user's own `step_3_best` or `step_03` is left alone.
    """
    match = re.fullmatch(r"step_(0|[1-9][0-9]*)(\.new)?", path.name)
    return int(match[1]) if match and path.is_dir() else -1
