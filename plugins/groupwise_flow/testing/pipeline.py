"""The laws that compare an adapter with the pipeline's own call, from the noise levels on."""

import torch

from groupwise.kit.errors import UserError
from groupwise.testing import compare, law
from groupwise_flow.passes.guidance import has_two_branches
from groupwise_flow.process.schedules import levels
from groupwise_flow.testing.case import LIMIT, STEPS, Case

SCALE, NEGATIVE = 3.0, "a dog"


@law(
    "noise levels are the pipeline's own",
    hint="`sigmas` or `schedule`, and `timestep`, which must give the timesteps of the pipeline's "
    "call; `exchange` for a scheduler whose steps are not Euler's",
)
def noise_levels(case: Case) -> str | None:
    try:
        ours = levels(case.adapter, STEPS)
    except UserError as error:
        return str(error)
    case.drawn(1.0, "latent")
    theirs = torch.as_tensor(case.pipeline.scheduler.timesteps).to(ours)
    times = case.adapter.timestep(ours[:-1])
    if times.shape != theirs.shape:
        return f"{STEPS} steps have {len(times)} timesteps, and {len(theirs)} in the pipeline"
    # In units of the whole range, as levels are.
    gaps = ((times - theirs).abs() / theirs.max()).tolist()
    for number, gap in enumerate(gaps):
        if gap > LIMIT:
            return (
                f"step {number} is at timestep {float(times[number]):.6g} (level "
                f"{float(ours[number]):.6g}), and at {float(theirs[number]):.6g} in the pipeline"
            )
    return None


@law(
    "denoising is the pipeline's own",
    hint="`velocity` (its sign is noise - data), `noise_scale`, and `output` and `call_latents` if "
    "the pipeline's latents are others",
)
def denoising(case: Case) -> str | None:
    return case.denoising_gap(1.0)


@law(
    "guidance is the pipeline's own",
    hint="`guide`, `unconditional_row` (marked: some pipelines encode it without their template), "
    "`call_guidance` and `call_arguments`",
)
def guidance(case: Case) -> str | None:
    return case.denoising_gap(SCALE) if case.adapter.takes_guidance() else None


@law(
    "a negative prompt is the pipeline's own",
    hint="`unconditional_row`, `call_arguments`, and `takes_negative_prompt` where the pipeline's "
    "call takes none",
)
def negative_prompt(case: Case) -> str | None:
    adapter = case.adapter
    if not has_two_branches(adapter, SCALE) or not adapter.takes_negative_prompt():
        return None
    if not adapter.takes_guidance():
        return None
    return case.denoising_gap(SCALE, NEGATIVE)


@law(
    "pictures are the pipeline's own",
    hint="`decode`: scaling and unpacking of latents as in the pipeline, and values in [0, 1], "
    "where autoencoders return [-1, 1]",
)
def decoding(case: Case) -> str | None:
    latents = case.latents(1.0)
    with torch.no_grad():
        _, images = case.adapter.completions(latents)
    gap = compare.gap(images, case.drawn(1.0, "pt"))
    return f"they differ by {gap:.2g}, where white is 1" if gap > LIMIT else None
