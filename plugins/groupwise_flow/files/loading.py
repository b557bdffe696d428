"""Loading a diffusers pipeline, whole or sharded."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch.distributed.device_mesh import DeviceMesh

from groupwise.kit import trust
from groupwise.kit.errors import UserError
from groupwise.kit.model_files import weight_files
from groupwise_flow.adapter import Adapter
from groupwise_flow.files.folder import (
    READING,
    WEIGHTS,
    adapter_class,
    check_weights,
    components,
    kind_of,
    pipeline_class,
    places,
    read_index,
)
from groupwise_flow.files.messages import explained, quiet, strict
from groupwise_flow.files.outline import without_weights
from groupwise_flow.files.sharding import read
from groupwise_flow.model.precision import cast, stored
from groupwise_flow.model.sharding import divide, weightless
from groupwise_flow.model.trainable import fitted
from groupwise_flow.settings import Settings

LOADING = "cannot load a diffusers pipeline from"
PLACED = ("quantization_config", "device_map", "max_memory", "offload_folder")
"""Arguments of loading that quantise or place weights, which rules out sharding."""


def load(settings: Settings, mesh: DeviceMesh | None = None) -> Adapter:
    """The pipeline behind its adapter; only the trained weights require gradients.

    mesh: of the processes that share the trained model; None without sharding. Raises UserError
    where the pipeline cannot be loaded, has no known architecture or cannot be sharded.
    """
    index = read_index(settings)
    make = adapter_class(settings, index)
    trained = make.trained_in(components(index))
    dtypes = dict(stored(settings.precision, make, trained, lora=settings.lora is not None))
    if settings.instance is not None:
        return fitted(_in_dtypes(settings.instance, dtypes), make, settings)
    check_weights(settings, index)
    arguments = _arguments(settings, index)
    if mesh is not None:
        return _load_divided(settings, make, index, mesh, dtypes=dtypes, arguments=arguments)
    with quiet(), explained(settings, LOADING), strict():
        pipeline = pipeline_class(index).from_pretrained(
            settings.model, **{"torch_dtype": dtypes, **arguments}
        )
    _check_complete(settings, pipeline)
    return fitted(pipeline, make, settings)


def _check_complete(settings: Settings, pipeline: Any) -> None:
    """Raise UserError where files lack weights of a model, which diffusers leaves without data."""
    models = {n: m for n, m in pipeline.components.items() if isinstance(m, torch.nn.Module)}
    for name, model in models.items() if "device_map" not in settings.loading else ():
        missing = [key for key, weight in model.named_parameters() if weight.is_meta]
        if missing:
            raise UserError(
                f"policy.model: {settings.model!r}, {name}: its files lack {len(missing)} weights "
                f"of {type(model).__name__}, {missing[0]!r} for example"
            )


def _in_dtypes(pipeline: Any, dtypes: Mapping[str, torch.dtype]) -> Any:
    """A pipeline that was passed as an object, with its models in the dtypes of a run.

    Raises UserError if it cannot be trained in place.
    """
    for name, part in pipeline.components.items():
        if not isinstance(part, torch.nn.Module):
            continue
        if getattr(part, "peft_config", None):
            raise UserError(
                f"policy.model: {name} of the pipeline has adapters already, those of an earlier "
                f"run perhaps; pass one without (`unload_lora_weights` removes them), and set "
                f"`lora` to train new ones"
            )
        cast(part, dtypes.get(name, dtypes["default"]))
    return pipeline


def _arguments(settings: Settings, index: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of diffusers' from_pretrained, except dtypes."""
    # diffusers wants components that the folder lacks to be passed as None.
    absent = {name: None for name, part in index.items() if part == [None, None]}
    return {
        trust.SAFETENSORS: True,
        trust.SETTING: False,
        **absent,
        **settings.loading,
    }


def load_missing(
    adapter: Adapter, settings: Settings, names: Collection[str]
) -> dict[str, torch.nn.Module]:
    """These models of the adapter's pipeline in CPU memory, loaded as `load` does.

    Raises UserError where they cannot be loaded.
    """
    others = {n: part for n, part in adapter.pipeline.components.items() if n not in names}
    kind, lora = type(adapter), settings.lora is not None
    dtypes = dict(stored(settings.precision, kind, adapter.trained, lora=lora))
    index = read_index(settings)
    arguments = {**_arguments(settings, index), **others, "torch_dtype": dtypes}
    with quiet(), explained(settings, LOADING), strict():
        pipeline = pipeline_class(index).from_pretrained(settings.model, **arguments)
    return {name: getattr(pipeline, name) for name in names}


def _load_divided(
    settings: Settings,
    make: type[Adapter],
    index: Mapping[str, Any],
    mesh: DeviceMesh,
    *,
    dtypes: Mapping[str, torch.dtype],
    arguments: Mapping[str, Any],
) -> Adapter:
    """As `load`; trained models are built without weights, sharded, then each shard is read.

    dtypes, arguments: of diffusers' from_pretrained. Raises UserError for a pipeline that diffusers
    loads with other models than these.
    """
    folder, own = settings.model, pipeline_class(index)
    with quiet(), explained(settings, LOADING), strict():
        if not Path(folder).is_dir():
            folder = DiffusionPipeline.download(folder, **arguments)
        models = {
            name: without_weights(folder, name, index[name], dtypes.get(name, dtypes["default"]))
            for name in make.trained_in(components(index))
        }
        pipeline = own.from_pretrained(folder, **{"torch_dtype": dtypes, **arguments, **models})
    for name, model in models.items():
        if getattr(pipeline, name) is not model:
            raise UserError(
                f"train.shard: {own.__name__} of diffusers takes no {name!r}, and loads the whole "
                f"of it; leave train.shard out, and each process holds the whole model"
            )
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(weightless(model))
        adapter = fitted(pipeline, make, settings)
    for name, model in models.items():
        divide(model, mesh, settings.precision)
        with explained(settings, LOADING):
            variant = settings.loading.get("variant")
            files = weight_files(Path(folder) / name, WEIGHTS["diffusers"], variant)
            read(model, files, mesh.device_type)
    return adapter


def check_shardable(settings: Settings) -> None:
    """Raise UserError where a trained model cannot be sharded, before any weights are read."""
    if settings.instance is not None:
        raise UserError(
            "train.shard: a pipeline that is an object is whole on every process already; pass its "
            "folder or hub name, of which each process reads its shard"
        )
    index = read_index(settings)
    other = [key for key in PLACED if settings.loading.get(key) is not None]
    if other:
        raise UserError(
            f"train.shard: sharding decides where weights lie, and so does policy.loading."
            f"{other[0]}; leave one of the two out"
        )
    if settings.lora is not None and settings.lora.options.get("use_dora"):
        raise UserError(
            "policy.lora.options: use_dora is initialised from the norms of whole weights, which "
            "with train.shard no process has; leave one of the two out"
        )
    for name in adapter_class(settings, index).trained_in(components(index)):
        _check_part(settings, name, index.get(name))


def _check_part(settings: Settings, name: str, entry: Any) -> None:
    """Raise UserError for a trained model that cannot be sharded; entry: [library, class]."""
    part: Any = kind_of(entry)
    if not hasattr(part, "from_config"):
        raise UserError(
            f"train.shard: {name!r} of {settings.model!r} is {entry}, which is no model "
            f"of diffusers; leave train.shard out, and each process holds the whole of it"
        )
    with quiet(), explained(settings, READING):
        config = part.load_config(settings.model, subfolder=name, **places(settings))
    if config.get("quantization_config"):
        raise UserError(
            f"train.shard: {name!r} of {settings.model!r} is quantised, and such weights cannot be "
            f"sharded; leave train.shard out, or use the model that is not quantised"
        )
