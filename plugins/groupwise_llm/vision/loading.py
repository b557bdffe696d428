"""Loading what reads pictures for a model: its processor, and the family that it belongs to."""

from typing import Any

from transformers import AutoProcessor

from groupwise.kit import trust
from groupwise.kit.errors import UserError
from groupwise.registry import installed
from groupwise_llm.files.folder import file_arguments
from groupwise_llm.settings import Settings
from groupwise_llm.vision.family import Family


def family_class(config: Any) -> type[Family]:
    """The family that is registered for a model's type. Raises UserError where there is none."""
    registry, name = installed(), config.model_type
    if not registry.named("families", name):
        known = ", ".join(sorted({e.name for e in registry.entries if e.kind == "families"}))
        broken = "; ".join(f"plugin {p!r}: {why}" for p, why in registry.failures.items())
        raise UserError(
            f"policy.model: no family of vision-language models for the type {name!r}; registered "
            f"are {known or 'none'}{f' (could not be loaded: {broken})' if broken else ''}. A "
            f"model of text alone is a policy language_model; write a family of your own as "
            f"docs/plugins.md shows"
        )
    family: type[Family] = registry.load("families", name)
    return family


def processor_of(settings: Settings) -> Any:
    """transformers' processor of the model. Raises UserError where there is none for pictures."""
    own = settings.tokenizer
    try:
        if own is None or isinstance(own, str):
            name = own or settings.model
            processor = AutoProcessor.from_pretrained(name, **file_arguments(settings))
        else:
            processor = own
    except Exception as error:  # transformers raises a dozen kinds
        raise UserError(
            f"policy.model: cannot load a processor of pictures from {settings.model!r}: "
            f"{trust.reason_of_policy(error)}"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise UserError(
            f"policy.model: {settings.model!r} has no processor of pictures, only a "
            f"{type(processor).__name__}; copy preprocessor_config.json (or processor_config.json) "
            f"of the model that it was made from into its folder"
        )
    return processor
