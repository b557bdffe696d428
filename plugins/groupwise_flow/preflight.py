"""Preflight: the checks of a run's start, from a pipeline's folder, without its weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from groupwise.errors import UserError
from groupwise_flow.adapter import Limit
from groupwise_flow.files.folder import read_index
from groupwise_flow.files.outline import outline
from groupwise_flow.passes.guidance import Guided
from groupwise_flow.process.schedules import levels
from groupwise_flow.settings import FlowSettings, Settings


def examine(settings: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Notes on the prompts. Raises UserError for settings and prompts that a run would refuse.

    Builds everything as a run does, around models without weights.
    """
    adapter = outline(settings)
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


def intervals(settings: FlowSettings) -> Tensor | None:
    """[n] sigma - sigma_next of each step that can be a decision; None for unknown pipelines."""
    adapter = outline(settings)
    if adapter is None:
        return None
    sigmas = levels(adapter, settings.steps)
    return -sigmas.diff()[settings.window.decisions(settings.steps)]


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
    return _length_notes(map(guided.adapter.text, rows), limit, config.long_prompts)


def _length_notes(prompts: Iterable[str], limit: Limit | None, action: str) -> Sequence[str]:
    """A note on prompts that are too long and skipped or cut; UserError with `action` error."""
    distinct = list(dict.fromkeys(prompts))
    if limit is None:
        return ()
    if action == "error":
        limit.check(distinct)
        return ()
    count = len(limit.too_long(distinct))
    note = (
        f"policy.long_prompts: {count:,} of {len(distinct):,} prompts have more than {limit.most} "
        f"tokens and are {'left out' if action == 'skip' else 'cut off there'}"
    )
    return (note,) if count else ()
