"""Loading a diffusers pipeline, full or with LoRA, and saving it so that diffusers reads it."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR, NOTSET, WARNING, LogRecord
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging
from torch import Tensor
from transformers.utils import logging as transformers_logging

from groupwise import trust
from groupwise.errors import UserError, first_line
from groupwise_flow.adapter import Adapter
from groupwise_flow.flux import Flux
from groupwise_flow.precision import stored
from groupwise_flow.sd3 import StableDiffusion3
from groupwise_flow.settings import Settings
from groupwise_flow.skeleton import places

ADAPTERS: dict[str, type[Adapter]] = {
    "StableDiffusion3Pipeline": StableDiffusion3,
    "FluxPipeline": Flux,
}
UNSAVED_OPTIONS = ("bias", "layer_replication", "modules_to_save", "target_parameters")


def load(settings: Settings) -> Adapter:
    """The pipeline behind its adapter, nothing trainable but what is to be trained.

    Raises UserError where it cannot be had, is of no known architecture, or no flow model.
    """
    index = read_index(settings)
    make = adapter_class(settings, index)
    # Parts that were left out when the folder was saved must be named to be left out again.
    absent = {name: None for name, part in index.items() if part == [None, None]}
    usual = {
        "torch_dtype": dict(stored(settings.precision, lora=settings.lora is not None)),
        "use_safetensors": True,  # no pickle is loaded
        trust.SETTING: False,
    }
    with quiet(), explained(settings, "cannot load a diffusers pipeline from"), _strict():
        pipeline = DiffusionPipeline.from_pretrained(
            settings.model, **{**usual, **absent, **settings.loading}
        )
    return fitted(pipeline, make, settings)


def fitted(pipeline: Any, make: Any, settings: Settings) -> Adapter:
    """A pipeline behind the adapter that `make` makes, trainable where it is to be trained.

    Its models may be on the meta device. Raises UserError for sizes and LoRA that do not fit it.
    """
    pipeline.set_progress_bar_config(disable=True)
    adapter: Adapter = make(
        pipeline,
        height=settings.height,
        width=settings.width,
        prompt_tokens=settings.prompt_tokens,
    )
    models = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    for module in models:
        module.requires_grad_(False)
    _make_trainable(pipeline.transformer, settings, adapter)
    for module in models:
        module.eval()  # for good, adapters too: dropout would part sampling from training
    return adapter


def read_index(settings: Settings) -> dict[str, Any]:
    """The pipeline's parts by name, read before any weights are; [None, None] for absent ones."""
    if {"torch_dtype", "dtype"} & settings.loading.keys():
        raise UserError("policy.loading: dtypes follow from policy.precision; set that instead")
    with quiet(), explained(settings, "cannot read a diffusers pipeline from"):
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


def adapter_class(settings: Settings, index: Mapping[str, Any]) -> Any:
    """The adapter of the pipeline's class; UserError where there is none or it is no flow model."""
    name, scheduler = index.get("_class_name"), (index.get("scheduler") or [None, None])[1]
    if "FlowMatch" not in str(scheduler):
        raise UserError(
            f"policy.model: {settings.model!r} is no flow-matching pipeline: {name} with scheduler "
            f"{scheduler}, where a FlowMatch scheduler is expected"
        )
    if settings.adapter is not None:
        return settings.adapter
    if name not in ADAPTERS:
        raise UserError(
            f"policy.model: no adapter for {name}; there are adapters for {', '.join(ADAPTERS)}, "
            f"and `policy.adapter` names one of your own"
        )
    return ADAPTERS[name]


def _make_trainable(transformer: Any, settings: Settings, adapter: Adapter) -> None:
    """Adapters, or all of the transformer, in float32."""
    if settings.gradient_checkpointing:
        transformer.enable_gradient_checkpointing()
    if settings.lora is None:
        transformer.requires_grad_(True)
        return
    from peft import LoraConfig

    lora = settings.lora
    _check_options(lora.options)
    options = {"lora_dropout": 0.0, "init_lora_weights": "gaussian", **lora.options}
    targets = list(lora.targets or adapter.targets)
    try:
        config = LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha or 2 * lora.rank, target_modules=targets, **options
        )
        with transformer.device:  # where peft, too, should make them
            transformer.add_adapter(config)
    except (TypeError, ValueError) as error:
        raise UserError(f"policy.lora: {first_line(error)}") from error
    for parameter in transformer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)


def _check_options(options: Mapping[str, Any]) -> None:
    """UserError for what a file of LoRA weights, read onto the model's own, would not hold."""
    lost = [name for name in UNSAVED_OPTIONS if options.get(name) not in (None, "none")]
    if lost:
        raise UserError(
            f"policy.lora.options: {lost[0]} would train what `load_lora_weights` does not read; "
            f"leave it out, or train all of the model without `lora`"
        )
    init = options.get("init_lora_weights", "gaussian")
    if init not in (True, False, "gaussian", "orthogonal"):
        raise UserError(
            f"policy.lora.options: init_lora_weights: {init} changes the model's own weights, so "
            f"that the adapters would not fit them when they are loaded; expected true, false, "
            f"gaussian or orthogonal"
        )


def save(adapter: Adapter, path: Path, *, lora: bool) -> None:
    """A pipeline folder; or, with LoRA, a file that `pipeline.load_lora_weights(path)` reads."""
    pipeline = adapter.pipeline
    path.mkdir(parents=True, exist_ok=True)
    with quiet():
        if not lora:
            pipeline.save_pretrained(path)
            return
        layers, config = _of_scale_one(pipeline.transformer)
        pipeline.save_lora_weights(
            path, transformer_lora_layers=layers, transformer_lora_adapter_metadata=config
        )


def _of_scale_one(transformer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The adapters' weights and configuration, their scale alpha / rank multiplied into B.

    Readers that take no metadata take alpha to be the rank, and would halve adapters of twice it.
    """
    from peft import get_peft_model_state_dict

    scales = {
        name: module.scaling["default"]
        for name, module in transformer.named_modules()
        if hasattr(module, "scaling")
    }
    layers = {}
    for name, weight in get_peft_model_state_dict(transformer).items():
        layer, second, _ = name.partition(".lora_B")
        layers[name] = (weight * scales[layer] if second else weight).detach().cpu()
    config = transformer.peft_config["default"].to_dict()
    ranks = {"lora_alpha": config["r"], "alpha_pattern": dict(config["rank_pattern"])}
    return layers, {**config, **ranks, "use_rslora": False}


@contextmanager
def explained(settings: Settings, problem: str) -> Iterator[None]:
    """Whatever goes wrong inside as a UserError of one line."""
    try:
        yield
    except Exception as error:  # diffusers, transformers and safetensors raise a dozen kinds
        reason = trust.UNTRUSTED if trust.brings_code(error) else first_line(error)
        raise UserError(f"policy.model: {problem} {settings.model!r}: {reason}") from error


@contextmanager
def _strict() -> Iterator[None]:
    """Arguments that diffusers does not know are an error; it only logs that it ignores them."""

    def refuse(record: LogRecord) -> bool:
        if "are not expected by" in record.getMessage():
            raise ValueError(record.getMessage())
        return record.levelno >= ERROR

    logger = logging.get_logger("diffusers.pipelines.pipeline_utils")
    level, off, below = logger.level, logger.disabled, logger.manager.disable
    logger.setLevel(WARNING)
    logger.disabled, logger.manager.disable = False, NOTSET  # whoever has switched logging off
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
        logger.disabled, logger.manager.disable = off, below
        logger.setLevel(level)


@contextmanager
def quiet() -> Iterator[None]:
    """Progress bars would tear up the run's own, and a missing T5 is no reason to speak."""
    logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    trust.ask_nobody()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what libraries tell each other of their arguments
            yield
    finally:
        logging.set_verbosity(verbosity)
