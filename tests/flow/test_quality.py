"""A trained model draws as good pictures with the noise of training as without it.

The model is that of examples/shapes.yaml; the quality of a picture is the share of its prompt that
it shows. 400 pictures for each sampler, which start from the same noise as those of the ODE.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise_flow import sde
from groupwise_flow.policy import FlowPolicy
from groupwise_verifiable.images.contents import ImageContents

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "shapes"
PROMPTS, EACH, STEPS = 100, 4, 10
TOLERANCE = 0.05
"""Three standard errors of the difference of two mean qualities."""

WINDOW = {"kind": "random", "size": 3}
SAMPLERS = {
    "cps": {"sde": "cps", "noise_level": 0.8},
    "flow, window": {"sde": "flow", "noise_level": 0.7, "window": WINDOW},
    "dance, window": {"sde": "dance", "noise_level": 0.3, "window": WINDOW},
    "cps, window": {"sde": "cps", "noise_level": 0.8, "window": WINDOW},
}


def quality(sampler, purpose="train"):
    """The mean share of the prompts' objects that the pictures show."""
    policy = FlowPolicy(
        FlowPolicy.Config(
            model=str(EXAMPLE / "base"),
            prompt_tokens=1,
            steps=STEPS,
            batch=PROMPTS * EACH,
            evaluation_steps=STEPS,
            **sampler,
        )
    )
    policy.place("cpu")
    lines = (EXAMPLE / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines[:: len(lines) // PROMPTS]][:PROMPTS]
    seeds = range(PROMPTS * EACH)
    drawn = policy.sample(rows, group_size=EACH, seeds=seeds, purpose=purpose)
    include = [row["include"] for row in drawn.prompts]
    values = ImageContents(ImageContents.Config(mode="partial"))(
        prompts=[row["prompt"] for row in drawn.prompts],
        completions=drawn.completions,
        include=include,
    )
    return sum(values) / len(values)


@pytest.fixture(scope="module")
def ode_quality():
    return quality({}, purpose="evaluate")


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_costs_no_quality(name, ode_quality):
    """It may even gain: later noise can correct errors of early steps."""
    assert quality(SAMPLERS[name]) > ode_quality - TOLERANCE


def test_noise_without_the_drift_correction_costs_quality(ode_quality, monkeypatch):
    move = sde.Noise.move

    def uncorrected(self, velocity, sample, sigma, sigma_next, **options):
        drawn = move(self, velocity, sample, sigma, sigma_next, **options)
        straight = move(sde.ODE, velocity, sample, sigma, sigma_next).next_sample
        return replace(drawn, next_sample=straight + drawn.next_sample - drawn.mean)

    monkeypatch.setattr(sde.Noise, "move", uncorrected)
    assert quality(SAMPLERS["flow, window"]) < ode_quality - 2 * TOLERANCE
