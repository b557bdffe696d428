"""Preflight: the checks of a run's start that need no weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from groupwise.errors import UserError
from groupwise_llm.codec.prompts import Prompts
from groupwise_llm.files.loading import config_of, outline, positions_of, tokenizer_of
from groupwise_llm.model import rotary
from groupwise_llm.model.coverage import coverage, experts_without_adapters
from groupwise_llm.settings import Settings

CUTS = ("top_k", "top_p", "min_p", "repetition_penalty")
"""Settings that make the sampling distribution differ from the softmax of the log-probs."""


def examine(settings: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Notes on the model, its adapters and the prompts.

    Raises UserError for settings and prompts that a run would refuse.
    """
    model = config_of(settings)
    whole = outline(settings, model)
    prompts = Prompts(tokenizer_of(settings), settings, positions=positions_of(model))
    notes = [*rotary.fix(whole, prompts.longest), *prompts.check(rows)]
    if settings.lora is not None:
        notes += [coverage(whole), *experts_without_adapters(whole)]
    return notes


def check_uncut(settings: Settings, sampler: str) -> None:
    """Raise UserError for settings such as top_k, with which the log-probs of the sampler of this
    name would be those of a truncated distribution, not of the softmax that is trained."""
    usual = Settings.model_fields
    cuts = [name for name in CUTS if getattr(settings, name) != usual[name].default]
    if cuts:
        chosen = ", ".join(f"policy.{name} {getattr(settings, name)}" for name in cuts)
        raise UserError(
            f"{chosen}: {sampler} states log-probs of the truncated distribution, and training "
            f"needs those of the full softmax; leave {', '.join(cuts)} unset, or leave out the "
            f"section sampler"
        )
