"""Each adapter without noise draws the images of diffusers' own pipeline call."""

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline

from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise_flow.adapters.sd3 import SD3Adapter
from groupwise_flow.passes import guidance
from groupwise_flow.policy import FlowPolicy

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


@pytest.mark.parametrize(("name", "scale", "more"), CASES)
@pytest.mark.slow(after=4)
def test_evaluation_draws_the_images_of_the_pipeline(lab, name, scale, more, rounding):
    policy = lab.policy(name, guidance=scale, evaluation_steps=6, **more)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[5, 6], purpose="evaluate")
    absent = {"text_encoder_3": None, "tokenizer_3": None} if "without" in name else {}
    pipeline = DiffusionPipeline.from_pretrained(lab.folders[name], **absent)
    expected = lab.pipelines_images(pipeline, policy, lab.rows, [5, 6])
    allowed = rounding.bounds(lambda: lab.pipelines_images(pipeline, policy, lab.rows, [5, 6]))
    assert rounding.excess(lab.images_of(rollouts), expected, allowed) <= 1
    # The images of the two prompts differ, so the prompts are used.
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    pixels = np.stack([np.asarray(image) for image in rollouts.completions]) / 255
    expected = expected.permute(0, 2, 3, 1).numpy()
    assert np.abs(pixels - expected).max() <= 0.5 / 255 + allowed[0]


@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_sigmas_are_those_of_the_pipeline(lab, name, rounding):
    policy = lab.policy(name, evaluation_steps=6)
    sigmas = policy.adapter.sigmas(6)
    assert sigmas[0] == 1
    assert sigmas[-1] == 0
    assert bool((sigmas[1:] < sigmas[:-1]).all())
    scheduler = policy.adapter.pipeline.scheduler
    rounding.same(lambda: 1000 * sigmas[:-1], scheduler.timesteps.cpu())


@pytest.mark.parametrize("name", ["sd3", "sd3 shifting", "flux"])
def test_training_uses_the_sigmas_of_a_pipeline_call_with_as_many_steps(lab, name, rounding):
    policy = lab.policy(name, steps=4, evaluation_steps=4)
    pipeline = DiffusionPipeline.from_pretrained(lab.folders[name])
    lab.pipelines_images(pipeline, policy, lab.rows, [5, 6])
    rounding.same(lambda: policy.sigmas, pipeline.scheduler.sigmas.cpu())


@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_pictures_of_another_size_than_the_models_default(lab, name):
    policy = lab.policy(name, height=8, width=12)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    assert rollouts.completions[0].size == (12, 8)
    assert rollouts.facts["pixels"][0].shape == (3, 8, 12)


class CountsFromZero(SD3Adapter):
    """Guidance as Z-Image's pipeline counts it."""

    def call_guidance(self, scale):
        return scale - 1

    def takes_negative_prompt(self):
        return False


def test_guidance_that_the_pipeline_counts_otherwise_is_stated_in_both_numbers(lab):
    settings = lab.settings(adapter=CountsFromZero, guidance=4.0, training_guidance=1.0)
    notes = FlowPolicy.examine(settings, lab.rows)
    where = " in the call of StableDiffusion3Pipeline, where 0 is off, as 1 is here"
    assert notes == (f"policy.guidance: 4 is 3{where}", f"policy.training_guidance: 1 is 0{where}")
    negative = settings.model_copy(update={"negative_prompt": "two dogs"})
    with pytest.raises(UserError, match=r"policy\.negative_prompt: the call of .* takes none"):
        FlowPolicy.examine(negative, lab.rows)


class Both(SD3Adapter):
    """A second model adds to the velocity."""

    trained = ("transformer", "vae")

    def velocity(self, latents, sigma, conditions, *, guidance):
        first = super().velocity(latents, sigma, conditions, guidance=guidance)
        return first + 0.1 * self.models["vae"].decoder.conv_in(latents)[:, :4]

    def check_row(self, row):
        if row["prompt"] == "nothing":
            raise UserError("a row about nothing cannot be drawn")


def test_several_models_are_trained_saved_and_counted(lab, tmp_path, rounding):
    policy = lab.policy(adapter=Both)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    policy(rollouts).log_probs.sum().backward()
    gradients = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
    moved = {name.partition(".")[0] for name, value in gradients.items() if bool(value.any())}
    assert moved == {"transformer", "vae"}
    before = policy._weights_now.number
    with torch.no_grad():
        policy.adapter.models["vae"].decoder.conv_in.weight.add_(0.1)
    assert policy._weights_now.number != before
    policy.save_pretrained(tmp_path / "model")
    again = lab.policy(adapter=Both, model=str(tmp_path / "model"))

    def images(each):
        return lab.images_of(each.sample(lab.rows, group_size=1, seeds=[5, 6], purpose="evaluate"))

    rounding.same(lambda: images(again), images(policy))
    counts = {"decisions": 8, "rollouts": 8, "group_size": 4, "sampled": 0, "training": True}
    sizes = FlowPolicy.estimate(policy.config, Workload(**counts, reference=False, averages=0))
    parts = policy.adapter.models.values()
    assert sizes["gradients"] == 4 * sum(p.numel() for part in parts for p in part.parameters())
    assert {"transformer", "vae"} <= sizes.keys()
    with pytest.raises(UserError, match="a row about nothing cannot be drawn"):
        FlowPolicy.examine(policy.config, [{"prompt": "nothing"}])


def test_how_many_are_decoded_at_once_follows_from_pixels_and_frames(lab, monkeypatch):
    policy = lab.policy(batch=64)
    monkeypatch.setattr(guidance, "DECODED", 16 * 16 * 24)
    assert policy.guided.decoded_at_once == 24
    monkeypatch.setattr(type(policy.adapter), "frames", 5)
    assert policy.guided.decoded_at_once == 4
