"""Saving a language model as transformers or peft does; a sharded model is saved whole."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from groupwise.kit.errors import UserError, first_line
from groupwise_llm.files.loading import Loaded
from groupwise_llm.model import modes


def try_saving(loaded: Loaded) -> None:
    """Do what `save` will do, without the weights, in a folder that is removed.

    Of adapters with a number in place of each weight. Raises UserError where that fails.
    """
    numbers: dict[str, Tensor] = {}
    if hasattr(loaded.model, "peft_config"):
        numbers = {name: torch.zeros(1) for name in _saved_weights(loaded.model)}
    with TemporaryDirectory() as folder:
        try:
            _write(loaded, Path(folder), numbers)
        except Exception as error:  # of any library
            raise UserError(
                f"policy.model: what is trained could not be saved by "
                f"{type(loaded.model).__name__}.save_pretrained: {type(error).__name__}: "
                f"{first_line(error)}"
            ) from error


def save(loaded: Loaded, path: Path) -> None:
    """Save the model by transformers, or its adapter by peft, and its processor beside it.

    A sharded model is gathered weight by weight, a collective: every rank must call this. Rank 0
    holds the whole model in main memory and writes it.
    """
    weights = None
    if loaded.writes is not None:
        weights = _whole(_saved_weights(loaded.model), keep=loaded.writes)
        if not loaded.writes:
            return
    path.mkdir(parents=True, exist_ok=True)
    _write(loaded, path, weights)


def _write(loaded: Loaded, path: Path, weights: Mapping[str, Tensor] | None) -> None:
    """weights: by name, those of the model if None."""
    options = {} if weights is None else {"state_dict": weights}
    with warnings.catch_warnings(), modes.restored(loaded.overridden):
        # peft asks the hub whether the base model's vocabulary changed, and warns when offline.
        warnings.simplefilter("ignore", UserWarning)
        loaded.model.save_pretrained(path, **options)
    loaded.processor.save_pretrained(path)


def _saved_weights(model: Any) -> dict[str, Tensor]:
    """All weights by name; with adapters only the trained ones."""
    weights: dict[str, Tensor] = model.state_dict(keep_vars=True)
    if not hasattr(model, "peft_config"):
        return weights
    return {name: weight for name, weight in weights.items() if weight.requires_grad}


@torch.no_grad()
def _whole(weights: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The weights gathered one after the other, to the CPU of the processes that `keep` them.

    A collective: every rank must call it. Tied weights stay one tensor.
    """
    full: dict[int, Tensor] = {}
    kept: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if id(weight) not in full:
            tensor = weight.detach()
            tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            full[id(weight)] = tensor.cpu() if keep else tensor.new_empty(0)
        kept[name] = full[id(weight)]
    return kept if keep else {}
