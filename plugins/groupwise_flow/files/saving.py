"""Saving the trained model for diffusers: a pipeline folder, or a file of LoRA weights."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from groupwise_flow.adapter import Adapter
from groupwise_flow.files.messages import quiet
from groupwise_flow.model.lora import with_unit_scale
from groupwise_flow.model.sharding import whole

FILE_SIZE = "10GB"
"""diffusers' default; also the most that rank 0 holds at once of a sharded model."""


def save(adapter: Adapter, path: Path, *, lora: bool, mesh: DeviceMesh | None) -> None:
    """Write a pipeline folder; or, with LoRA, a file that `pipeline.load_lora_weights(path)` reads.

    mesh: of a sharded model. Gathering is a collective: every rank must call this; rank 0 writes.
    """
    first = mesh is None or mesh.get_rank() == 0
    if first:
        path.mkdir(parents=True, exist_ok=True)
    with quiet():
        if lora:
            weights: dict[str, Any] = {}
            for name, model in adapter.models.items():
                layers, config = with_unit_scale(model)
                weights[f"{name}_lora_layers"] = layers
                weights[f"{name}_lora_adapter_metadata"] = config
            if first:
                adapter.pipeline.save_lora_weights(path, **weights)
        elif mesh is None:
            adapter.pipeline.save_pretrained(path)
        else:
            _save_all(adapter, path if first else None)


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
    for model in models:  # diffusers calls save_pretrained of each component
        model.save_pretrained = partial(_save_divided, model)
    try:
        adapter.pipeline.save_pretrained(path)
    finally:
        for model in models:
            del model.save_pretrained


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
