"""Samples of a trained model: as good with the noise of training as without it.

The model is that of examples/shapes.yaml, and good means that a picture holds what its prompt says.
Four hundred pictures a sampler, each from the noise that its ODE neighbour starts from, too.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise_flow import sde
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.settings import Settings
from groupwise_verifiable.images.contents import ImageContents

EXAMPLE = Path(__file__).parents[2] / "examples" / "shapes"
PROMPTS, EACH, STEPS = 100, 4, 10
TOLERANCE = 0.05
"""Of the mean share of a scene that is right: three standard errors of such a difference."""

WINDOW = {"kind": "random", "size": 3}
SAMPLERS = {
    "cps": {"sde": "cps", "noise_level": 0.8},
    "flow, window": {"sde": "flow", "noise_level": 0.7, "window": WINDOW},
    "dance, window": {"sde": "dance", "noise_level": 0.3, "window": WINDOW},
    "cps, window": {"sde": "cps", "noise_level": 0.8, "window": WINDOW},
}


def quality(sampler, purpose="train"):
    """The mean share of what the prompts ask for that is in the pictures."""
    policy = FlowPolicy(
        Settings(
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
def of_the_ode():
    return quality({}, purpose="evaluate")


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_costs_no_quality(name, of_the_ode):
    """It may gain some: fresh noise mends what an early step got wrong."""
    assert quality(SAMPLERS[name]) > of_the_ode - TOLERANCE


def test_noise_without_its_drift_does(of_the_ode, monkeypatch):
    move = sde.move

    def uncorrected(velocity, sample, sigma, sigma_next, **options):
        drawn = move(velocity, sample, sigma, sigma_next, **options)
        straight = move(velocity, sample, sigma, sigma_next, kind="ode").next_sample
        return replace(drawn, next_sample=straight + drawn.next_sample - drawn.mean)

    monkeypatch.setattr(sde, "move", uncorrected)
    assert quality(SAMPLERS["flow, window"]) < of_the_ode - 2 * TOLERANCE
