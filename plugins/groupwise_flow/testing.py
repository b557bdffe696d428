"""For authors of adapters: `check_adapter` checks an adapter's laws on a pipeline."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.testing import compare, hold, law
from groupwise_flow.adapter import MASK, Adapter, Conditions, Row
from groupwise_flow.passes.guidance import Guided
from groupwise_flow.passes.sampling import sample_latents
from groupwise_flow.process.denoising import without_noise
from groupwise_flow.process.schedules import levels
from groupwise_flow.settings import FlowSettings

LIMIT = 1e-4
"""Largest gap between velocities or latents that should be equal, relative above 1; in float32."""
STEPS, SCALE = 4, 3.0
ROWS = ({"prompt": "a cat"}, {"prompt": "two small dogs and a bird"})


def check_adapter(
    adapter_class: type[Adapter],
    pipeline: Any,
    *,
    rows: Sequence[Row] = ROWS,
    height: int | None = None,
    width: int | None = None,
    prompt_tokens: int = 96,
) -> None:
    """Check an adapter on a pipeline. Raises AssertionError, which names the first law that is
    broken.

    `groupwise.testing.check_adapter` calls this function for every subclass of `Adapter`.

    pipeline: in float32, ideally a tiny one with random weights. rows: two or more, with prompts of
    different lengths and the columns that the adapter reads.
    """
    pipeline.set_progress_bar_config(disable=True)
    sizes = {"height": height, "width": width, "prompt_tokens": prompt_tokens}
    hold(adapter_class.__name__, LAWS, Case(adapter_class, pipeline, rows, sizes))


class Case:
    """An adapter, some rows, and its conditions and velocities for them."""

    def __init__(
        self, kind: type[Adapter], pipeline: Any, rows: Sequence[Row], sizes: Mapping[str, Any]
    ) -> None:
        self.kind, self.pipeline, self.rows, self.sizes = kind, pipeline, list(rows), sizes

    @cached_property
    def adapter(self) -> Adapter:
        return self.kind(self.pipeline, **self.sizes)

    def guided(self, scale: float) -> Guided:
        """The guided model of a policy with this adapter; nothing is loaded for it."""
        return Guided(self.adapter, FlowSettings(model="none", guidance=scale, **self.sizes))

    @cached_property
    def conditions(self) -> Conditions:
        return self.guided(1.0).conditions(self.rows)

    @cached_property
    def start(self) -> Tensor:
        """[n, ...] standard normal."""
        shape = (len(self.rows), *self.adapter.latent_shape)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return noise.to(self.adapter.device)

    @cached_property
    def scales(self) -> tuple[float, ...]:
        return (1.0, SCALE) if self.adapter.takes_guidance() else (1.0,)

    @torch.no_grad()
    def velocity(
        self, latents: Tensor, conditions: Conditions, *, sigma: float = 0.7, guidance: float = 1.0
    ) -> Tensor:
        levels = torch.full((len(latents),), sigma, device=latents.device)
        adapter = self.adapter
        return adapter.velocity(adapter.model, latents, levels, conditions, guidance=guidance)

    @cached_property
    def whole(self) -> Tensor:
        """The velocities of all rows at once."""
        return self.velocity(self.start, self.conditions)


@law(
    "the trained module is in the pipeline",
    hint="`pipelines`, `trained` (a part of the pipeline) and `targets` (names of its modules)",
)
def trained(case: Case) -> str | None:
    kind, name = case.kind, type(case.pipeline).__name__
    if kind.pipelines and name not in kind.pipelines:
        return f"it is for {', '.join(kind.pipelines)}, received a {name}"
    parts = case.pipeline.components
    if not isinstance(parts.get(kind.trained), nn.Module):
        modules = [part for part, value in parts.items() if isinstance(value, nn.Module)]
        return f"`trained` is {kind.trained!r}; the modules are {', '.join(modules)}"
    inside = [module for module, _ in parts[kind.trained].named_modules()]
    unknown = [t for t in kind.targets if not any(f".{m}".endswith(f".{t}") for m in inside)]
    return f"no module of {kind.trained} ends with {unknown[0]!r}" if unknown else None


@law(
    "conditions have one width and a mask",
    hint="`encode`: the same shape for any rows; conditions as wide as the longest prompt must be "
    "named in `by_token`, and come with a `mask`",
)
def conditions(case: Case) -> str | None:
    rows = case.rows
    for name, value in case.conditions.items():
        if len(value) != len(rows):
            return f"{name} are {list(value.shape)} for {len(rows)} rows"
    missing = set(case.adapter.by_token) - set(case.conditions)
    if missing:
        return f"`by_token` names {sorted(missing)}, and there are {sorted(case.conditions)}"
    # Encoded here, since a policy encodes each row alone.
    together = case.adapter.encode(rows)
    for number, row in enumerate(rows):
        for name, value in case.adapter.encode([row]).items():
            if value is None:
                continue
            beside = together[name][number : number + 1]
            if name in case.adapter.by_token:
                beside = beside[:, : value.shape[1]]
            if value.shape != beside.shape:
                return (
                    f"{name} of row {number} are {list(value.shape)} alone and "
                    f"{list(beside.shape)} beside others"
                )
            gap = compare.gap(value, beside)
            if gap > LIMIT:
                return f"{name} of row {number} alone and beside others differ by {gap:.2g}"
    return None


@law("latents and velocities have the right shapes", hint="`latent_shape` and `velocity`")
def shapes(case: Case) -> str | None:
    if case.whole.shape != case.start.shape:
        return f"velocities are {list(case.whole.shape)} of latents {list(case.start.shape)}"
    return None if bool(case.whole.isfinite().all()) else "velocities are not finite"


@law(
    "batching does not change an answer",
    hint="`velocity`: inputs of the model that all rows share, such as lengths and positions",
)
def batching(case: Case) -> str | None:
    for number in range(len(case.rows)):
        one = slice(number, number + 1)
        conditions = {name: value[one] for name, value in case.conditions.items()}
        gap = compare.gap(case.velocity(case.start[one], conditions), case.whole[one])
        if gap > LIMIT:
            return f"the velocity of row {number} alone differs by {gap:.2g}"
    return None


@law(
    "masked tokens have no effect",
    hint=f"`velocity`: it must pass conditions[{MASK!r}] to the model, in the form that it takes",
)
def masked(case: Case) -> str | None:
    mask = case.conditions.get(MASK)
    if mask is None or not case.adapter.by_token or bool(mask.all()):
        return None
    other = dict(case.conditions)
    for name in case.adapter.by_token:
        real = mask.view(*mask.shape, *[1] * (other[name].ndim - 2))
        other[name] = torch.where(real, other[name], 1.0)
    gap = compare.gap(case.velocity(case.start, other), case.whole)
    return f"other values there change velocities by {gap:.2g}" if gap > LIMIT else None


@law(
    "velocities depend on prompts and noise levels",
    hint="`velocity`: conditions and `sigma`, scaled as the model's timestep",
)
def depends_on_inputs(case: Case) -> str | None:
    swapped = {name: value.flip(0) for name, value in case.conditions.items()}
    if torch.equal(case.velocity(case.start, swapped), case.whole):
        return "other prompts give the same velocities"
    if torch.equal(case.velocity(case.start, case.conditions, sigma=0.2), case.whole):
        return "other noise levels give the same velocities"
    return None


@law(
    "no guidance is the conditional velocity",
    hint="`guide`: with a scale of 1 it must return the conditional velocity",
)
def unguided(case: Case) -> str | None:
    conditional, other = case.whole, case.whole.flip(0)
    gap = compare.gap(case.adapter.guide(conditional, other, 1.0), conditional)
    if gap > LIMIT:
        return f"with a scale of 1 it differs from the conditional velocity by {gap:.2g}"
    return None


@law(
    "denoising is the pipeline's own",
    hint="`velocity` (its sign is noise - data), `sigmas`, `schedule`, `guide`, "
    "`unconditional_row`, and `call_arguments`, with which the pipeline must draw the same",
)
def denoising(case: Case) -> str | None:
    for scale in case.scales:
        seeds = range(len(case.rows))
        plan = without_noise(levels(case.adapter, STEPS), len(seeds))
        with torch.no_grad():
            done = sample_latents(case.guided(scale), case.rows, seeds, plan, guidance=scale)
        gap = compare.gap(done.latents.flatten(1), _drawn(case, scale, "latent").flatten(1))
        if gap > LIMIT:
            return f"with guidance {scale:g} latents differ from the pipeline's by {gap:.2g}"
    return None


def _drawn(case: Case, scale: float, output_type: str) -> Tensor:
    """[n, ...]: the output of the pipeline's own call on the noise of `sample_latents`.

    output_type: the pipeline's own: "latent", or "pt" for pictures in [0, 1].
    """
    shape = case.adapter.latent_shape
    start = [
        torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        for seed in range(len(case.rows))
    ]
    call = case.adapter.call_arguments(guidance=scale, negative_prompt="")
    if "negative_prompt" in call:
        call["negative_prompt"] = [call["negative_prompt"]] * len(case.rows)
    output: Tensor = case.pipeline(
        **{name: [row[name] for row in case.rows] for name in case.adapter.reads},
        num_inference_steps=STEPS,
        latents=torch.stack(start).to(case.adapter.device),
        height=case.adapter.height,
        width=case.adapter.width,
        output_type=output_type,
        return_dict=False,
        **call,
    )[0]
    return output


@law(
    "pictures have the requested size",
    hint="`decode`: [n, 3, height, width], or frames [n, frames, 3, height, width], in [0, 1]",
)
def pictures(case: Case) -> str | None:
    adapter, count = case.adapter, len(case.rows)
    with torch.no_grad():
        completions, images = adapter.completions(case.start)
    size = (3, adapter.height, adapter.width)
    if len(completions) != count or len(images) != count or images.shape[-3:] != size:
        return (
            f"for {count} latents there are {len(completions)} completions and images "
            f"{list(images.shape)}, expected {[count, *size]}"
        )
    if float(images.min()) < 0 or float(images.max()) > 1:
        return f"values range from {float(images.min()):.3g} to {float(images.max()):.3g}"
    return None


@law(
    "pictures are the pipeline's own",
    hint="`decode`: scaling and unpacking of latents as in the pipeline, and values in [0, 1], "
    "where autoencoders return [-1, 1]",
)
def decoding(case: Case) -> str | None:
    with torch.no_grad():
        latents = _drawn(case, 1.0, "latent").view_as(case.start)
        _, images = case.adapter.completions(latents)
    gap = compare.gap(images, _drawn(case, 1.0, "pt"))
    return f"they differ by {gap:.2g}, where white is 1" if gap > LIMIT else None


LAWS = (
    trained,
    conditions,
    shapes,
    batching,
    masked,
    depends_on_inputs,
    unguided,
    denoising,
    pictures,
    decoding,
)
