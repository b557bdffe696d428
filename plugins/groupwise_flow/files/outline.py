"""Outline: a pipeline whose models have no weights (meta device), for checks and estimates."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from accelerate import init_empty_weights
from torch import nn

from groupwise_flow.adapter import Adapter
from groupwise_flow.files.folder import READING, adapter_class, kind_of, places, read_index
from groupwise_flow.files.messages import explained, quiet
from groupwise_flow.model.trainable import fitted
from groupwise_flow.settings import Settings


def outline(settings: Settings) -> Adapter | None:
    """The adapter around models without weights; None where the pipeline, or a component of it, is
    not from diffusers or transformers.

    Raises UserError for a folder that cannot be read, and as `read_index`, `adapter_class` and
    `fitted`.
    """
    index = read_index(settings)
    make = adapter_class(settings, index)
    with quiet(), explained(settings, READING):
        pipeline = skeleton(settings, index)
    return None if pipeline is None else fitted(pipeline, make, settings)


def skeleton(settings: Settings, index: Mapping[str, Any]) -> Any:
    """The pipeline; None where it or a component is not from diffusers or transformers.

    index: its components by name. Raises the libraries' own errors for a folder they cannot read.
    """
    kind: Any = getattr(diffusers, str(index.get("_class_name")), None)
    named = {name: part for name, part in index.items() if isinstance(part, list)}
    if kind is None or not all(kind_of(part) for part in named.values() if any(part)):
        return None
    parts = {n: _part(settings, n, part) if any(part) else None for n, part in named.items()}
    # As whether a model is distilled, which decides on guidance.
    known = inspect.signature(kind.__init__).parameters.keys() - named.keys()
    return kind(**parts, **{name: index[name] for name in known & index.keys()})


def without_weights(folder: str, name: str, part: Any, dtype: torch.dtype) -> nn.Module:
    """A diffusers model from a pipeline's folder, with weights on the meta device.

    Buffers that it computes in its constructor, such as tables of positions, have values.
    """
    kind: Any = kind_of(part)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with init_empty_weights():
            model: nn.Module = kind.from_config(kind.load_config(folder, subfolder=name))
    finally:
        torch.set_default_dtype(usual)
    wide = set(kind._keep_in_fp32_modules or ())
    for key, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.float32 if wide & set(key.split(".")) else dtype)
    model.register_to_config(_name_or_path=str(Path(folder, name)))  # type: ignore[operator]
    return model


def _part(settings: Settings, name: str, part: Any) -> Any:
    """A model without weights; a tokenizer, scheduler or the like fully loaded."""
    kind: Any = kind_of(part)
    where = {"subfolder": name, **places(settings)}
    is_model = isinstance(kind, type) and issubclass(kind, nn.Module)
    if not is_model:
        return kind.from_pretrained(settings.model, **where)
    with torch.device("meta"):
        if part[0] == "diffusers":
            return kind.from_config(kind.load_config(settings.model, **where))
        return kind(kind.config_class.from_pretrained(settings.model, **where))
