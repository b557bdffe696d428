"""The laws of an adapter by itself: its shapes, and that its answers depend on what they should."""

import torch
from torch import nn

from groupwise.testing import compare, law
from groupwise_flow.adapter import MASK, Conditions, EditingAdapter
from groupwise_flow.testing.case import LIMIT, Case


@law(
    "the trained module is in the pipeline",
    hint="`pipelines`, `trained` (parts of the pipeline) and `targets` (names of its modules)",
)
def trained(case: Case) -> str | None:
    kind, name = case.kind, type(case.pipeline).__name__
    if kind.pipelines and name not in kind.pipelines:
        return f"it is for {', '.join(kind.pipelines)}, received a {name}"
    parts = case.pipeline.components
    there = [name for name, value in parts.items() if value is not None]
    for part in kind.trained_in(there):
        if not isinstance(parts.get(part), nn.Module):
            modules = [other for other, value in parts.items() if isinstance(value, nn.Module)]
            return f"`trained` has {part!r}; the modules are {', '.join(modules)}"
        inside = [module for module, _ in parts[part].named_modules()]
        unknown = [t for t in kind.targets if not any(f".{m}".endswith(f".{t}") for m in inside)]
        if unknown:
            return f"no module of {part} ends with {unknown[0]!r}"
    return None


@law(
    "conditions have one width and a mask",
    hint="`encode`: the same shape for any rows; conditions as wide as the longest prompt must be "
    "named in `by_token`, and come with a `mask`",
)
def conditions(case: Case) -> str | None:
    rows = case.rows
    for name, encoded in case.conditions.items():
        if len(encoded) != len(rows):
            return f"{name} are {list(encoded.shape)} for {len(rows)} rows"
    missing = set(case.adapter.by_token) - set(case.conditions)
    if missing:
        return f"`by_token` names {sorted(missing)}, and there are {sorted(case.conditions)}"
    # Encoded here, since a policy encodes each row alone.
    rows = [case.adapter.columns(row) for row in rows]
    together = case.adapter.encode(rows)
    for number, row in enumerate(rows):
        for name, value in case.adapter.encode([row]).items():
            if value is None:
                continue
            both = together[name]
            assert both is not None, name
            beside = both[number : number + 1]
            if name in (*case.adapter.by_token, MASK):
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
        conditions = case.conditions.select(one, [number])
        gap = compare.gap(case.velocity(case.start[one], conditions), case.whole[one])
        if gap > LIMIT:
            return f"the velocity of row {number} alone differs by {gap:.2g}"
    return None


@law(
    "masked tokens have no effect",
    hint=f"`velocity`: it must pass conditions[{MASK!r}], or conditions.lengths, to the model, in "
    "the form that it takes",
)
def masked(case: Case) -> str | None:
    mask = case.conditions.get(MASK)
    if mask is None or not case.adapter.by_token or bool(mask.all()):
        return None
    other = dict(case.conditions)
    for name in case.adapter.by_token:
        real = mask.view(*mask.shape, *[1] * (other[name].ndim - 2))
        other[name] = torch.where(real, other[name], 1.0)
    changed = case.velocity(case.start, Conditions(other, case.conditions.lengths))
    gap = compare.gap(changed, case.whole)
    return f"other values there change velocities by {gap:.2g}" if gap > LIMIT else None


@law(
    "velocities depend on prompts and noise levels",
    hint="`velocity`: conditions and `sigma`, scaled as the model's timestep",
)
def depends_on_inputs(case: Case) -> str | None:
    order = list(reversed(range(len(case.rows))))
    swapped = case.conditions.select(torch.tensor(order, device=case.adapter.device), order)
    if torch.equal(case.velocity(case.start, swapped), case.whole):
        return "other prompts give the same velocities"
    if torch.equal(case.velocity(case.start, case.conditions, sigma=0.2), case.whole):
        return "other noise levels give the same velocities"
    return None


@law(
    "another source changes the velocity",
    hint="`encode`: the condition of `EditingAdapter.references`, which `velocity` gives to the "
    "model beside the latents",
)
def depends_on_sources(case: Case) -> str | None:
    adapter = case.adapter
    if not isinstance(adapter, EditingAdapter) or not adapter.options.references:
        return None
    rows = [*map(adapter.columns, case.rows)]
    pictures = [row["images"] for row in (*rows[1:], rows[0])]
    others = [{**row, "images": own} for row, own in zip(rows, pictures, strict=True)]
    velocities = case.velocity(case.start, case.guided(1.0).conditions(others))
    for number, velocity in enumerate(velocities):
        if torch.equal(velocity, case.whole[number]):
            return f"the picture of another row gives row {number} the same velocity"
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
    "pictures have the requested size",
    hint="`decode`: [n, 3, height, width], or frames [n, frames, 3, height, width], in [0, 1]",
)
def pictures(case: Case) -> str | None:
    adapter, count = case.adapter, len(case.rows)
    with torch.no_grad():
        completions, images = adapter.completions(case.start)
    size = adapter.decoded_shape
    if len(completions) != count or len(images) != count or images.shape[1:] != size:
        return (
            f"for {count} latents there are {len(completions)} completions and images "
            f"{list(images.shape)}, expected {[count, *size]}"
        )
    if float(images.min()) < 0 or float(images.max()) > 1:
        return f"values range from {float(images.min()):.3g} to {float(images.max()):.3g}"
    return None
