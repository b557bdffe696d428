"""The pipeline's folder, or its page on a hub: its components, its adapter, its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers import DiffusionPipeline
from diffusers.utils import SAFETENSORS_WEIGHTS_NAME

from groupwise.kit import trust
from groupwise.kit.errors import UserError
from groupwise.kit.model_files import NAME, folder_problem
from groupwise.registry import installed
from groupwise_flow.adapter import Adapter
from groupwise_flow.files.messages import explained, quiet
from groupwise_flow.settings import Settings

READING = "cannot read a diffusers pipeline from"
INDEX = "model_index.json"
WEIGHTS = {"diffusers": SAFETENSORS_WEIGHTS_NAME, "transformers": NAME}
"""The name of the file of weights of each library's models."""
_LIBRARIES = {"diffusers": diffusers, "transformers": transformers}


def read_index(settings: Settings) -> dict[str, Any]:
    """The pipeline's components by name, [library, class]; [None, None] for absent ones.

    Raises UserError for a folder that is incomplete or needs untrusted code.
    """
    if settings.instance is not None:
        return {**settings.instance.config, "_class_name": type(settings.instance).__name__}
    if {"torch_dtype", "dtype"} & settings.loading.keys():
        raise UserError("policy.loading: dtypes follow from policy.precision; set that instead")
    _check_place(settings.model)
    with quiet(), explained(settings, READING):
        index = dict(DiffusionPipeline.load_config(settings.model, **places(settings)))
    index |= {name: [None, None] for name in index if settings.loading.get(name, name) is None}
    folder = Path(settings.model)
    named = [name for name, part in index.items() if isinstance(part, list) and any(part)]
    own = [name for name in named if (folder / name / f"{index[name][0]}.py").is_file()]
    if own and not trust.is_trusted(settings.loading):
        raise UserError(f"policy.model: {settings.model!r}, {own[0]}: {trust.UNTRUSTED}")
    missing = [name for name in named if not (folder / name).is_dir()]
    if folder.is_dir() and missing:
        raise UserError(
            f"policy.model: {settings.model!r} has no folder {missing[0]!r}, which its "
            f"model_index.json names"
        )
    return index


def _check_place(model: str) -> None:
    """Raise UserError for a local path that is not a pipeline's folder."""
    if not Path(model).exists():
        return  # a hub's name
    problem = folder_problem(
        Path(model),
        INDEX,
        of_file="`from_single_file` of the pipeline's class in diffusers reads a single file, and "
        "`save_pretrained` writes the folder",
        of_gguf="GGUF holds quantised weights of one part of a pipeline, which cannot be trained; "
        "expected the folder or hub name of the pipeline that it was made from",
    )
    if problem is not None:
        raise UserError(f"policy.model: {model!r}: {problem}")


def components(index: Mapping[str, Any]) -> list[str]:
    """The names of the components that the pipeline has."""
    return [name for name, part in index.items() if isinstance(part, list | tuple) and any(part)]


def kind_of(part: Any) -> Any:
    """The class of an entry of the index, [library, class]; None where it names none."""
    library, name = part if isinstance(part, list) else (None, None)
    return getattr(_LIBRARIES.get(str(library)), str(name), None)


def pipeline_class(index: Mapping[str, Any]) -> type[DiffusionPipeline]:
    """The pipeline's own class, where diffusers has it: `DiffusionPipeline.from_pretrained` reads
    those components anew that it is passed and the class can do without, as Wan's transformers."""
    kind: type[DiffusionPipeline] = getattr(
        diffusers, str(index.get("_class_name")), DiffusionPipeline
    )
    return kind


def check_weights(settings: Settings, index: Mapping[str, Any]) -> None:
    """Raise UserError where the folder lacks weights of a model, or their files are cut off."""
    for name, part in index.items():
        kind = kind_of(part)
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
            trust.check_weights(settings.model, settings.loading, name, name=WEIGHTS[part[0]])


def places(settings: Settings) -> dict[str, Any]:
    """The arguments of loading that say where files are."""
    names = {"revision", "cache_dir", "token", "local_files_only"}
    return {name: value for name, value in settings.loading.items() if name in names}


def adapter_class(settings: Settings, index: Mapping[str, Any]) -> type[Adapter]:
    """The adapter that the settings name, or the one registered for the pipeline's class.

    UserError where there is none, or it is for other pipelines.
    """
    name = str(index.get("_class_name"))
    registry = installed()
    if settings.adapter is None and not registry.named("adapters", name):
        known = ", ".join(sorted({e.name for e in registry.entries if e.kind == "adapters"}))
        broken = "; ".join(f"plugin {p!r}: {why}" for p, why in registry.failures.items())
        raise UserError(
            f"policy.model: no adapter for {name}; registered are adapters for {known or 'none'}"
            f"{f' (could not be loaded: {broken})' if broken else ''}. Write your own as "
            f"docs/plugins.md shows, and set policy.adapter: module:attribute"
        )
    if settings.adapter is None:
        registered: type[Adapter] = registry.load("adapters", name)
        return registered
    adapter = settings.adapter.kind
    if lacking := sorted(getattr(adapter, "__abstractmethods__", ())):
        raise UserError(f"policy.adapter: {adapter.__name__} lacks {', '.join(lacking)}")
    if adapter.pipelines and name not in adapter.pipelines:
        raise UserError(
            f"policy.adapter: {adapter.__name__} is for {', '.join(adapter.pipelines)}, and "
            f"{settings.model!r} holds a {name}"
        )
    return adapter
