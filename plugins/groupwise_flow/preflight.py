"""Preflight: the checks of a run's start, from a pipeline's folder, without its weights."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise_flow.adapter import Adapter, EditingAdapter, Limit
from groupwise_flow.effect import other_decisions
from groupwise_flow.files.folder import adapter_class, check_weights, read_index
from groupwise_flow.files.outline import outline
from groupwise_flow.passes.guidance import Guided
from groupwise_flow.process.schedules import is_close, levels, levels_before
from groupwise_flow.prompts.columns import column_notes
from groupwise_flow.settings import FlowSettings, Settings


def examine(settings: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Notes on the prompts. Raises UserError for settings and prompts that a run would refuse.

    Builds everything as a run does, around models without weights.
    """
    adapter, index = outline(settings), read_index(settings)
    if settings.instance is None:
        check_weights(settings, index)
    if adapter is None:
        kind = index.get("_class_name")
        note = (
            f"policy.model: {kind}, or a component of it, is not from diffusers or transformers: "
            f"size, adapters, guidance and prompts can only be checked by a run"
        )
        return (note,)
    guided = Guided(adapter, settings)
    levels(adapter, settings.steps)
    levels(guided.at_evaluation().adapter, settings.evaluation_steps)
    rows = iter(rows)
    first = [*islice(rows, 1)]
    notes = [*_scheduler_notes(adapter, settings), *_guidance_notes(adapter, settings)]
    return (*notes, *column_notes(*first), *checked(guided, chain(first, rows)))


def reads_pictures(settings: Settings) -> bool:
    """Whether the adapter reads pictures of rows; False for a model that a run refuses."""
    try:
        kind = adapter_class(settings, read_index(settings))
    except UserError:
        return False
    options: Any = kind.Config() if settings.adapter is None else settings.adapter.options
    return issubclass(kind, EditingAdapter) and options.references > 0


def _precision_notes(settings: Settings) -> Sequence[str]:
    """A note where a step would take minutes in place of seconds."""
    if settings.precision != "fp16" or torch.accelerator.is_available():
        return ()
    note = (
        "policy.precision: there is no GPU here, and a CPU takes many times as long in fp16 as in "
        "float32; to train on this CPU set policy.precision=float32"
    )
    return (note,)


def _scheduler_notes(adapter: Adapter, settings: Settings) -> Sequence[str]:
    """A note where the pipeline's scheduler is exchanged for another, and the levels of both where
    they differ."""
    if adapter.exchanged is None:
        return ()
    own, other = type(adapter.own_scheduler).__name__, adapter.exchanged.kind.__name__
    changed = ", ".join(f"{name}: {value}" for name, value in adapter.exchanged.settings.items())
    with_settings = f"{other} ({changed})" if changed else other
    note = (
        f"policy.model: pictures are drawn by {with_settings} in place of the pipeline's {own}, "
        f"whose steps are not Euler's; the model card says so"
    )
    notes = [note]
    for key in ("steps", "evaluation_steps"):
        steps: int = getattr(settings, key)
        trained, before = levels(adapter, steps), levels_before(adapter, steps)
        if before is None or not is_close(trained, before):
            notes.append(
                f"policy.{key}: {steps} steps of {other} are at the noise levels "
                f"{_numbers(trained)}, and those of the pipeline's {own} at "
                f"{'unknown ones' if before is None else _numbers(before)}"
            )
    return notes


def _numbers(values: Tensor) -> str:
    return " ".join(f"{value:.3f}" for value in values.tolist())


def _guidance_notes(adapter: Adapter, settings: Settings) -> Sequence[str]:
    """A note for each guidance scale that the pipeline's own call gives another number."""
    scales = {"guidance": settings.guidance, "training_guidance": settings.training_guidance}
    name = type(adapter.pipeline).__name__
    return [
        f"policy.{key}: {scale:g} is {adapter.call_guidance(scale):g} in the call of {name}, where "
        f"{adapter.call_guidance(1.0):g} is off, as 1 is here"
        for key, scale in scales.items()
        if scale is not None and adapter.call_guidance(scale) != scale
    ]


def check_teacher(settings: Settings, teacher: Settings) -> None:
    """Raise UserError unless the teacher has the policy's decisions: its latents, noise levels,
    noise, and formula of a log-prob. Its velocities may be others."""
    for name in other_decisions(settings, teacher):
        raise UserError(
            f"the teacher scores the policy's decisions, and {name} is {getattr(teacher, name)} "
            f"here and {getattr(settings, name)} in the policy; leave it out here"
        )
    ours, other = outline(settings), outline(teacher)
    if ours is None or other is None:
        return  # components of unknown libraries: only a run can tell
    if ours.latent_shape != other.latent_shape:
        raise UserError(
            f"the teacher reads the policy's latents: expected the shape {[*ours.latent_shape]}, "
            f"found {[*other.latent_shape]}"
        )
    if _autoencoder(ours) != _autoencoder(other):
        raise UserError(
            "the teacher reads the policy's latents, and its autoencoder has another "
            "configuration; expected a model with the same one"
        )
    if not levels(ours, settings.steps).equal(levels(other, teacher.steps)):
        raise UserError(
            "the teacher's noise levels are others than the policy's; expected a scheduler with "
            "the same settings"
        )


def _autoencoder(adapter: Adapter) -> Mapping[str, Any]:
    """The settings of the pipeline's autoencoder, {} if it has none of that name."""
    config = getattr(getattr(adapter.pipeline, "vae", None), "config", {})
    return {name: value for name, value in config.items() if not name.startswith("_")}


def intervals(settings: FlowSettings) -> Tensor | None:
    """[n] sigma - sigma_next of each step that can be a decision; None for unknown pipelines."""
    adapter = outline(settings)
    if adapter is None:
        return None
    sigmas = levels(adapter, settings.steps)
    return -sigmas.diff()[settings.window.decisions(settings.steps)]


def checked(guided: Guided, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Notes on the precision, and on the rows' prompts that are skipped or cut.

    Raises UserError for refused prompts, and for a negative prompt that is too long, unless prompts
    are cut; with `encoders: cached` also if the encodings of all rows cannot be kept, or there are
    no rows.
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
    lengths = _length_notes(_texts(guided.adapter, rows), limit, config.long_prompts)
    return (*_precision_notes(config), *lengths)


def _texts(adapter: Adapter, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The prompts of rows, which are checked one by one."""
    for row in rows:
        adapter.check_row(row)
        yield adapter.text(row)


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
