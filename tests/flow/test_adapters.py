"""Each adapter without noise draws the images of diffusers' own pipeline call."""

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline

CASES = [
    ("sd3", 1.0, {}),
    ("sd3", 4.5, {}),
    ("sd3", 4.5, {"negative_prompt": "two dogs"}),
    ("sd3", 1.0, {"height": 8, "width": 12}),
    ("sd3 without t5", 1.0, {}),
    ("sd3.5", 4.5, {}),
    ("sd3 shifting", 2.0, {}),
    ("sd3 shifting", 2.0, {"height": 12, "width": 8}),
    ("flux", 3.5, {}),
    ("flux", 3.5, {"height": 8, "width": 12}),
    ("flux", 1.0, {}),
    ("flux unguided", 1.0, {}),
]


@pytest.mark.parametrize(("name", "guidance", "more"), CASES)
def test_evaluation_draws_the_images_of_the_pipeline(lab, name, guidance, more):
    policy = lab.policy(name, guidance=guidance, evaluation_steps=6, **more)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[5, 6], purpose="evaluate")
    absent = {"text_encoder_3": None, "tokenizer_3": None} if "without" in name else {}
    pipeline = DiffusionPipeline.from_pretrained(lab.folders[name], **absent)
    expected = lab.pipelines_images(pipeline, policy, lab.rows, [5, 6])
    images = lab.images_of(rollouts)
    assert (images - expected).abs().max() < 2e-5
    # The images of the two prompts differ, so the prompts are used.
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    pixels = np.stack([np.asarray(image) for image in rollouts.completions]) / 255
    expected = expected.permute(0, 2, 3, 1).numpy()
    assert np.abs(pixels - expected).max() < 0.5 / 255 + 2e-5


@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_sigmas_are_those_of_the_pipeline(lab, name):
    policy = lab.policy(name, evaluation_steps=6)
    sigmas = policy.adapter.sigmas(6)
    assert sigmas[0] == 1
    assert sigmas[-1] == 0
    assert bool((sigmas[1:] < sigmas[:-1]).all())
    scheduler = policy.adapter.pipeline.scheduler
    torch.testing.assert_close(1000 * sigmas[:-1], scheduler.timesteps.cpu())


@pytest.mark.parametrize("name", ["sd3", "sd3 shifting", "flux"])
def test_training_uses_the_sigmas_of_a_pipeline_call_with_as_many_steps(lab, name):
    policy = lab.policy(name, steps=4, evaluation_steps=4)
    pipeline = DiffusionPipeline.from_pretrained(lab.folders[name])
    lab.pipelines_images(pipeline, policy, lab.rows, [5, 6])
    torch.testing.assert_close(policy.sigmas, pipeline.scheduler.sigmas.cpu(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_pictures_of_another_size_than_the_models_default(lab, name):
    policy = lab.policy(name, height=8, width=12)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    assert rollouts.completions[0].size == (12, 8)
    assert rollouts.facts["images"][0].shape == (3, 8, 12)
