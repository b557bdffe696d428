"""Saving what was trained as diffusers reads it: a pipeline's folder, or a file of LoRA weights."""

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
from groupwise_flow.loading import quiet
from groupwise_flow.lora import of_scale_one
from groupwise_flow.sharding import whole

FILE_SIZE = "10GB"
"""Diffusers' own, and what the first process holds at once of a model that is divided."""


def save(adapter: Adapter, path: Path, *, lora: bool, mesh: DeviceMesh | None) -> None:
    """A pipeline folder; or, with LoRA, a file that `pipeline.load_lora_weights(path)` reads.

    mesh: the processes that the model is divided among. All must call this; the first writes.
    """
    model: Any = adapter.model
    first = mesh is None or mesh.get_rank() == 0
    if first:
        path.mkdir(parents=True, exist_ok=True)
    with quiet():
        if lora:
            layers, config = of_scale_one(model)
            if first:
                part = adapter.trained
                weights = {f"{part}_lora_layers": layers}
                weights[f"{part}_lora_adapter_metadata"] = config
                adapter.pipeline.save_lora_weights(path, **weights)
        elif mesh is None:
            adapter.pipeline.save_pretrained(path)
        elif first:
            # Diffusers asks each part to save itself.
            model.save_pretrained = partial(_save_divided, model)
            try:
                adapter.pipeline.save_pretrained(path)
            finally:
                del model.save_pretrained
        else:
            _save_divided(model, None)


def _save_divided(model: Any, path: str | None) -> None:
    """A model's folder, gathered tensor by tensor; None for a process that only takes part."""
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
    # The class that was divided: `fully_shard` puts one of its own before it.
    kind = next(c for c in type(model).__mro__ if not issubclass(c, FSDPModule))
    config = json.loads(model.to_json_string()) | {"_class_name": kind.__name__}
    _write_json(folder / model.config_name, config)
    if parts.is_sharded:
        index = {"metadata": parts.metadata, "weight_map": parts.tensor_to_filename}
        _write_json(folder / SAFE_WEIGHTS_INDEX_NAME, index)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
