"""Saving the trained model for diffusers: a pipeline folder, or files of LoRA weights."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from diffusers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from groupwise.kit.errors import UserError, first_line
from groupwise_flow.adapter import Adapter, LoraWeights
from groupwise_flow.files.messages import quiet
from groupwise_flow.model.lora import with_unit_scale
from groupwise_flow.model.sharding import whole

FILE_SIZE = "10GB"
"""diffusers' default; also the most that rank 0 holds at once of a sharded model."""


def save(adapter: Adapter, path: Path, *, lora: bool, mesh: DeviceMesh | None) -> None:
    """Write a pipeline folder; or, with LoRA, the files that `Adapter.lora_code` reads.

    mesh: of a sharded model. Gathering is a collective: every rank must call this; rank 0 writes.
    """
    first = mesh is None or mesh.get_rank() == 0
    if first:
        path.mkdir(parents=True, exist_ok=True)
    with quiet():
        if lora:
            weights = {n: LoraWeights(*with_unit_scale(m)) for n, m in adapter.models.items()}
            if first:
                adapter.save_lora(path, weights)
        elif mesh is None:
            adapter.pipeline.save_pretrained(path)
        else:
            _save_all(adapter, path if first else None)


def try_saving(adapter: Adapter, *, lora: bool) -> None:
    """Do what `save` will do, with a number in place of each tensor, in a folder that is removed.

    Raises UserError where that fails: a run must not learn at its end that it cannot be saved.
    """
    with TemporaryDirectory() as folder, quiet():
        try:
            if lora:
                weights = {n: _outline_of_lora(model) for n, model in adapter.models.items()}
                adapter.save_lora(Path(folder), weights)
            else:
                models = [p for p in adapter.pipeline.components.values() if _is_model(p)]
                with _saved_by(models, lambda model: partial(_save_config, model)):
                    adapter.pipeline.save_pretrained(folder)
        except Exception as error:  # of any library
            raise UserError(
                f"policy.model: what is trained could not be saved, as {type(adapter).__name__} "
                f"saves {type(adapter.pipeline).__name__}: {type(error).__name__}: "
                f"{first_line(error)}; an adapter of your own can save it (`save_lora`)"
            ) from error


def _outline_of_lora(model: Any) -> LoraWeights:
    """Of each tensor that `save` writes the name, and one number; nothing is gathered."""
    from peft import get_peft_model_state_dict

    layers = {name: torch.zeros(1) for name in get_peft_model_state_dict(model)}
    return LoraWeights(layers, model.peft_config["default"].to_dict())


def _is_model(part: Any) -> bool:
    return isinstance(part, torch.nn.Module) and hasattr(part, "save_pretrained")


def _save_config(model: Any, path: str, *_: Any, **__: Any) -> None:
    """Write a model's folder without its weights."""
    save: Any = getattr(model, "save_config", None) or model.config.save_pretrained
    save(path)


@contextmanager
def _saved_by(models: Iterable[Any], saving: Callable[[Any], Any]) -> Iterator[None]:
    """The context in which diffusers, which calls `save_pretrained` of each component, calls this
    in its place."""
    models = [*models]
    for model in models:
        model.save_pretrained = saving(model)
    try:
        yield
    finally:
        for model in models:
            del model.save_pretrained


def _save_all(adapter: Adapter, path: Path | None) -> None:
    """Write the folder of a pipeline with sharded models; path None on ranks that only take part in
    gathering."""
    # In the pipeline's order, in which the first rank gathers them.
    names = [name for name in adapter.pipeline.components if name in adapter.trained]
    models: list[Any] = [adapter.models[name] for name in names]
    if path is None:
        for model in models:
            _save_divided(model, None)
        return
    with _saved_by(models, lambda model: partial(_save_divided, model)):
        adapter.pipeline.save_pretrained(path)


def _save_divided(model: Any, path: str | None) -> None:
    """Write a sharded model's folder, gathered tensor by tensor; path None on ranks that only take
    part in gathering."""
    state = model.state_dict()
    sizes = {n: torch.empty(t.shape, dtype=t.dtype, device="meta") for n, t in state.items()}
    parts = split_torch_state_dict_into_shards(
        sizes,
        filename_pattern=SAFETENSORS_WEIGHTS_NAME.replace(".", "{suffix}."),
        max_shard_size=FILE_SIZE,
    )
    folder = None if path is None else Path(path)
    for file, names in parts.filename_to_tensors.items():
        tensors = {}
        for name in names:
            tensor = whole(state[name])
            if folder is not None:
                tensors[name] = tensor.cpu().contiguous()
            del tensor
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / file, metadata={"format": "pt"})
    if folder is None:
        return
    # The original class: `fully_shard` prepends one of its own.
    kind = next(c for c in type(model).__mro__ if not issubclass(c, FSDPModule))
    config = json.loads(model.to_json_string()) | {"_class_name": kind.__name__}
    _write_json(folder / model.config_name, config)
    if parts.is_sharded:
        index = {"metadata": parts.metadata, "weight_map": parts.tensor_to_filename}
        _write_json(folder / SAFE_WEIGHTS_INDEX_NAME, index)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
