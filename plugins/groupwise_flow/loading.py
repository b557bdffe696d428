"""Loading a diffusers pipeline, whole or sharded."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from logging import ERROR, NOTSET, WARNING, LogRecord
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint
from transformers.utils import logging as transformers_logging

from groupwise import trust
from groupwise.attention import without_cudnn
from groupwise.errors import UserError
from groupwise.registry import installed
from groupwise_flow.adapter import Adapter
from groupwise_flow.lora import add_lora
from groupwise_flow.precision import stored
from groupwise_flow.settings import Settings
from groupwise_flow.sharding import divide, read, weightless
from groupwise_flow.skeleton import kind_of, places, weight_files, without_weights

LOADING = "cannot load a diffusers pipeline from"
READING = "cannot read a diffusers pipeline from"
PLACED = ("quantization_config", "device_map", "max_memory", "offload_folder")
"""Arguments of loading that quantise or place weights, which rules out sharding."""


def load(settings: Settings, mesh: DeviceMesh | None = None) -> Adapter:
    """The pipeline behind its adapter; only the trained weights require gradients.

    mesh: of the processes that share the trained model; None without sharding. Raises UserError
    where the pipeline cannot be loaded, has no known architecture or cannot be sharded.
    """
    index = read_index(settings)
    make = adapter_class(settings, index)
    dtypes = dict(stored(settings.precision, make, lora=settings.lora is not None))
    arguments = _arguments(settings, index)
    if mesh is not None:
        part = index[make.trained]
        return _load_divided(settings, make, part, mesh, dtypes=dtypes, arguments=arguments)
    with quiet(), explained(settings, LOADING), _strict():
        pipeline = DiffusionPipeline.from_pretrained(
            settings.model, **{"torch_dtype": dtypes, **arguments}
        )
    return fitted(pipeline, make, settings)


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
    dtypes = dict(stored(settings.precision, type(adapter), lora=settings.lora is not None))
    arguments = {**_arguments(settings, read_index(settings)), **others, "torch_dtype": dtypes}
    with quiet(), explained(settings, LOADING), _strict():
        pipeline = DiffusionPipeline.from_pretrained(settings.model, **arguments)
    return {name: getattr(pipeline, name) for name in names}


def _load_divided(
    settings: Settings,
    make: type[Adapter],
    part: Any,
    mesh: DeviceMesh,
    *,
    dtypes: Mapping[str, torch.dtype],
    arguments: Mapping[str, Any],
) -> Adapter:
    """As `load`; the trained model is built without weights, sharded, then each shard is read.

    part: [library, class] of the trained model; dtypes, arguments: of diffusers' from_pretrained.
    """
    name, folder = make.trained, settings.model
    with quiet(), explained(settings, LOADING), _strict():
        if not Path(folder).is_dir():
            folder = DiffusionPipeline.download(folder, **arguments)
        model = without_weights(folder, name, part, dtypes.get(name, dtypes["default"]))
        pipeline = DiffusionPipeline.from_pretrained(
            folder, **{"torch_dtype": dtypes, **arguments, name: model}
        )
    with weightless(model):
        adapter = fitted(pipeline, make, settings)
    divide(model, mesh, settings.precision)
    with explained(settings, LOADING):
        files = weight_files(Path(folder) / name, settings.loading.get("variant"))
        read(model, files, mesh.device_type)
    return adapter


def check_shardable(settings: Settings) -> None:
    """Raise UserError where the trained model cannot be sharded, before any weights are read."""
    index = read_index(settings)
    name = adapter_class(settings, index).trained
    part: Any = kind_of(index.get(name))
    if not hasattr(part, "from_config"):
        raise UserError(
            f"train.shard: {name!r} of {settings.model!r} is {index.get(name)}, which is no model "
            f"of diffusers; leave train.shard out, and each process holds the whole of it"
        )
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
    with quiet(), explained(settings, READING):
        config = part.load_config(settings.model, subfolder=name, **places(settings))
    if config.get("quantization_config"):
        raise UserError(
            f"train.shard: {name!r} of {settings.model!r} is quantised, and such weights cannot be "
            f"sharded; leave train.shard out, or use the model that is not quantised"
        )


def fitted(pipeline: Any, make: type[Adapter], settings: Settings) -> Adapter:
    """The pipeline behind an adapter of class `make`, with gradients only for trained weights.

    Its models may be on the meta device. Raises UserError for sizes and LoRA that do not fit it.
    """
    pipeline.set_progress_bar_config(disable=True)
    adapter = make(
        pipeline,
        height=settings.height,
        width=settings.width,
        prompt_tokens=settings.prompt_tokens,
    )
    models = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    for module in models:
        module.requires_grad_(False)
    _make_trainable(adapter, settings)
    for module in models:
        module.eval()  # always: with dropout, sampling and training log-probs would differ
    return adapter


def read_index(settings: Settings) -> dict[str, Any]:
    """The pipeline's components by name, [library, class]; [None, None] for absent ones.

    Raises UserError for a folder that is incomplete or needs untrusted code.
    """
    if {"torch_dtype", "dtype"} & settings.loading.keys():
        raise UserError("policy.loading: dtypes follow from policy.precision; set that instead")
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
    adapter = settings.adapter
    if adapter.pipelines and name not in adapter.pipelines:
        raise UserError(
            f"policy.adapter: {adapter.__name__} is for {', '.join(adapter.pipelines)}, and "
            f"{settings.model!r} holds a {name}"
        )
    return adapter


def _make_trainable(adapter: Adapter, settings: Settings) -> None:
    """Make LoRA adapters trainable, in float32, or all weights of the trained model."""
    model: Any = adapter.model
    if settings.gradient_checkpointing:
        model.enable_gradient_checkpointing(_recomputed)
    if settings.lora is None:
        model.requires_grad_(True)
        return
    add_lora(model, settings.lora, adapter.targets)


def _recomputed(block: Any, *inputs: Any) -> Any:
    """Run a block with checkpointing; blocks draw no random numbers, so no RNG state is stored."""
    return checkpoint(
        block,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), without_cudnn()),
    )


@contextmanager
def explained(settings: Settings, problem: str) -> Iterator[None]:
    """The context in which any error becomes a UserError of one line."""
    try:
        yield
    except Exception as error:  # diffusers, transformers and safetensors raise a dozen kinds
        reason = trust.reason_of_policy(error)
        raise UserError(f"policy.model: {problem} {settings.model!r}: {reason}") from error


@contextmanager
def _strict() -> Iterator[None]:
    """The context in which unknown arguments are an error; diffusers only logs a warning."""

    def refuse(record: LogRecord) -> bool:
        if "are not expected by" in record.getMessage():
            raise ValueError(record.getMessage())
        return record.levelno >= ERROR

    logger = logging.get_logger("diffusers.pipelines.pipeline_utils")
    level, off, below = logger.level, logger.disabled, logger.manager.disable
    logger.setLevel(WARNING)
    logger.disabled, logger.manager.disable = False, NOTSET  # even where logging is switched off
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
        logger.disabled, logger.manager.disable = off, below
        logger.setLevel(level)


@contextmanager
def quiet() -> Iterator[None]:
    """The context without progress bars, which would break the run's own line, and without
    diffusers' warnings, such as for a missing T5."""
    logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    trust.ask_nobody()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries' warnings about each other's arguments
            yield
    finally:
        logging.set_verbosity(verbosity)
