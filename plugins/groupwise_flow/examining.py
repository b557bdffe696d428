"""Examining: the checks of a run's start, from a pipeline's folder, without its weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from groupwise.errors import UserError
from groupwise_flow import lengths
from groupwise_flow.adapter import Adapter
from groupwise_flow.guided import Guided
from groupwise_flow.levels import levels
from groupwise_flow.loading import (
    READING,
    adapter_class,
    explained,
    fitted,
    quiet,
    read_index,
)
from groupwise_flow.settings import Settings
from groupwise_flow.skeleton import skeleton


def examine(settings: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Notes on the prompts. Raises UserError for settings and prompts that a run would refuse.

    Builds everything as a run does, around models without weights.
    """
    adapter = _outline(settings)
    if adapter is None:
        kind = read_index(settings).get("_class_name")
        note = (
            f"policy.model: {kind}, or a component of it, is not from diffusers or transformers: "
            f"size, adapters, guidance and prompts can only be checked by a run"
        )
        return (note,)
    guided = Guided(adapter, settings)
    for steps in (settings.steps, settings.evaluation_steps):
        levels(adapter, steps)
    return checked(guided, rows)


def intervals(settings: Settings) -> Tensor | None:
    """[n] sigma - sigma_next of each step that can be a decision; None for unknown pipelines."""
    adapter = _outline(settings)
    if adapter is None:
        return None
    sigmas = levels(adapter, settings.steps)
    return -sigmas.diff()[settings.window.decisions(settings.steps)]


def _outline(settings: Settings) -> Adapter | None:
    """The adapter around models without weights; None where the pipeline, or a component of it, is
    not from diffusers or transformers."""
    index = read_index(settings)
    make = adapter_class(settings, index)
    with quiet(), explained(settings, READING):
        pipeline = skeleton(settings, index)
    return None if pipeline is None else fitted(pipeline, make, settings)


def checked(guided: Guided, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Notes on the rows' prompts that are skipped or cut. Raises UserError for refused prompts, and
    for a negative prompt that is too long, unless prompts are cut; with `encoders: cached` also if
    the encodings of all rows cannot be kept, or there are no rows.
    """
    config, limit = guided.config, guided.limit
    if config.encoders == "cached":
        rows = list(rows)
        if not rows:
            raise UserError(
                "policy.encoders: cached encodes the prompts of the data set before the first "
                "step, and this policy receives none: in a chain they are written during the run; "
                "set offload or resident"
            )
        guided.encodings.distinct(guided.cached(rows))
    if limit is not None and config.long_prompts != "cut":
        limit.check([config.negative_prompt])
    return lengths.check(map(guided.adapter.text, rows), limit, config.long_prompts)
