"""Skeleton: a pipeline whose models have no weights (meta device), for checks and estimates."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from accelerate import init_empty_weights
from diffusers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME
from torch import nn

from groupwise_flow.settings import Settings

_LIBRARIES = {"diffusers": diffusers, "transformers": transformers}


def skeleton(settings: Settings, index: Mapping[str, Any]) -> Any:
    """The pipeline; None where it or a component is not from diffusers or transformers.

    index: its components by name. Raises the libraries' own errors for a folder they cannot read.
    """
    kind: Any = getattr(diffusers, str(index.get("_class_name")), None)
    named = {name: part for name, part in index.items() if isinstance(part, list)}
    if kind is None or not all(kind_of(part) for part in named.values() if any(part)):
        return None
    return kind(
        **{name: _part(settings, name, part) if any(part) else None for name, part in named.items()}
    )


def kind_of(part: Any) -> Any:
    """The class of an entry of the index, [library, class]; None where it names none."""
    library, name = part if isinstance(part, list) else (None, None)
    return getattr(_LIBRARIES.get(str(library)), str(name), None)


def meta_model(settings: Settings, name: str, part: Any) -> nn.Module | None:
    """A model of the pipeline on the meta device; None for components that are no models."""
    kind: Any = kind_of(part)
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        return None
    loader: Any = kind
    where = {"subfolder": name, **places(settings)}
    with torch.device("meta"):
        if part[0] == "diffusers":
            return loader.from_config(loader.load_config(settings.model, **where))
        return loader(loader.config_class.from_pretrained(settings.model, **where))


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


def weight_files(folder: Path, variant: str | None = None) -> list[Path]:
    """The safetensors files of a diffusers model, by its index if it has one; [] if there are
    none."""
    usual = [SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME]
    names = [".".join([*n.split(".")[:-1], variant, n.split(".")[-1]]) for n in usual if variant]
    for path in (folder / name for name in (*names, *usual)):
        if not path.is_file():
            continue
        if path.suffix == ".safetensors":
            return [path]
        parts = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / part for part in sorted(set(parts))]
    return []


def places(settings: Settings) -> dict[str, Any]:
    """The arguments of loading that say where files are."""
    names = {"revision", "cache_dir", "token", "local_files_only"}
    return {name: value for name, value in settings.loading.items() if name in names}


def _part(settings: Settings, name: str, part: Any) -> Any:
    """A model without weights; a tokenizer, scheduler or the like fully loaded."""
    model = meta_model(settings, name, part)
    if model is not None:
        return model
    return kind_of(part).from_pretrained(settings.model, subfolder=name, **places(settings))
