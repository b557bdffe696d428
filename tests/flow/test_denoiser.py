"""An adapter of another family: a U-Net that predicts the noise in x = data + k noise, k to 157.

It has no transformer, AutoencoderKL or flow-matching scheduler, and its first sample is scaled.
With sigma = k / (1 + k) and x / (1 + k) it is a flow model, and Euler's steps are the same.
"""

import warnings

import pytest
import torch
from diffusers import (
    AutoencoderTiny,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from PIL import Image

import groupwise
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise_flow.adapter import Adapter
from groupwise_flow.policy import FlowPolicy
from groupwise_messages import video as videos

ROWS = [{"prompt": "a cat"}, {"prompt": "two dogs"}]
SEEDS = [5, 6]


class Denoiser(Adapter):
    """diffusers' `StableDiffusionPipeline` with an Euler scheduler."""

    trained = ("unet",)
    targets = ("to_q", "to_k", "to_v")

    @property
    def default_side(self):
        return self.model.config.sample_size * self.token_side

    @property
    def latent_shape(self):
        return (self.model.config.in_channels, self.token_rows, self.token_columns)

    def encode(self, rows):
        prompts = [row["prompt"] for row in rows]
        embeds, _ = self.pipeline.encode_prompt(prompts, self.device, 1, False)
        return {"embeds": embeds}

    def velocity(self, latents, sigma, conditions, *, guidance):
        k = (sigma / (1 - sigma)).view(-1, 1, 1, 1)
        x = latents * (1 + k)
        time = self.time(k.flatten())
        noise = self.model(x / (k.square() + 1).sqrt(), time, conditions["embeds"]).sample
        return noise - (x - k * noise)

    def time(self, k):
        """The time at noise level k, interpolated as by the scheduler: linearly in k."""
        alphas = self.pipeline.scheduler.alphas_cumprod.to(k)
        levels = ((1 - alphas) / alphas).sqrt()
        index = torch.searchsorted(levels, k).clamp(1, len(levels) - 1)
        low, high = levels[index - 1], levels[index]
        return index - 1 + (k - low) / (high - low)

    def sigmas(self, steps):
        self.pipeline.scheduler.set_timesteps(steps)
        k = self.pipeline.scheduler.sigmas
        return k / (1 + k)

    def noise_scale(self, steps):
        scheduler = self.pipeline.scheduler
        scheduler.set_timesteps(steps)
        return float(scheduler.init_noise_sigma / (1 + scheduler.sigmas[0]))

    def decode(self, latents):
        return self.pipeline.vae.decode(latents).sample / 2 + 0.5

    def call_arguments(self, *, guidance, negative_prompt):
        return {"guidance_scale": guidance, "negative_prompt": negative_prompt}


def denoiser(lab):
    tokenizer, text_encoder = lab.clip()
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=8,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    return StableDiffusionPipeline(
        unet=lab.awake(unet),
        vae=AutoencoderTiny(
            encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8),
            num_encoder_blocks=(1, 1),
            num_decoder_blocks=(1, 1),
            latent_channels=4,
        ),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        scheduler=EulerDiscreteScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


@pytest.fixture
def folder(lab, tmp_path):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        denoiser(lab).save_pretrained(tmp_path / "unet")
    return tmp_path / "unet"


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_latents_are_those_of_the_pipeline(lab, folder, guidance, rounding):
    policy = lab.policy(model=str(folder), adapter=Denoiser, guidance=guidance)
    assert 0.9 < float(policy.sigmas[0]) < 1
    latents, completions = [], policy.adapter.completions
    policy.adapter.completions = lambda x: latents.append(x) or completions(x)
    policy.sample(ROWS, group_size=1, seeds=SEEDS, purpose="evaluate")
    pipeline = DiffusionPipeline.from_pretrained(folder)
    expected = lab.pipelines_images(pipeline, policy, ROWS, SEEDS, "latent")
    rounding.same(lambda: lab.pipelines_images(pipeline, policy, ROWS, SEEDS, "latent"), latents[0])
    assert (expected[0] - expected[1]).abs().max() > 0.1


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
@pytest.mark.slow
def test_it_trains_and_the_saved_weights_draw_the_same_pictures(
    lab, folder, tmp_path, lora, rounding
):
    policy = lab.policy(
        model=str(folder), adapter=Denoiser, guidance=3.0, steps=4, noise_level=0.3, lora=lora
    )
    names = {name.partition(".")[0] for name, p in policy.named_parameters() if p.requires_grad}
    assert names == {"unet"}
    start = lab.images_of(policy.sample(ROWS, group_size=1, seeds=SEEDS, purpose="evaluate"))
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)
    groupwise.train(
        policy=policy,
        algorithm={"name": "flow_grpo", "beta": 0.1},
        prompts=ROWS,
        rewards=[lab.redness],
        train={"steps": 2, "groups_per_step": 2, "group_size": 3, "learning_rate": 1e-2},
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
    )
    pipeline = DiffusionPipeline.from_pretrained(folder if lora else tmp_path / "run" / "model")
    if lora:
        pipeline.load_lora_weights(tmp_path / "run" / "model")
    end = lab.images_of(policy.sample(ROWS, group_size=1, seeds=SEEDS, purpose="evaluate"))
    rounding.same(lambda: lab.pipelines_images(pipeline, policy, ROWS, SEEDS), end)
    assert (end - start).abs().max() > 1e-3


def test_the_memory_estimate_counts_activations(lab, folder):
    settings = lab.settings(model=str(folder), adapter=Denoiser)
    counts = {"decisions": 8, "rollouts": 8, "group_size": 4, "sampled": 0, "training": True}
    sizes = FlowPolicy.estimate(settings, Workload(**counts, reference=False, averages=1))
    assert sizes.keys() == {
        *("frozen models", "unet", "gradients", "optimizer", "activations", "moving average")
    }


class Untargeted(Denoiser):
    targets = ()


def test_lora_needs_targets(lab, folder):
    settings = {"model": str(folder), "adapter": Untargeted}
    with pytest.raises(UserError, match=r"policy\.lora\.targets: the model's adapter names no"):
        lab.policy(**settings, lora={"rank": 2})
    assert lab.trained(lab.policy(**settings, lora={"rank": 2, "targets": ["to_q"]}))


class Untranslated(Denoiser):
    def sigmas(self, steps):
        return super(Denoiser, self).sigmas(steps)


def test_sigmas_of_another_family_are_refused(lab, folder):
    with pytest.raises(UserError, match=r"EulerDiscreteScheduler fall from 157\.\d* to 0, where"):
        lab.policy(model=str(folder), adapter=Untranslated)


class Video(Denoiser):
    """Two frames of each latent."""

    frames = 2

    def decode(self, latents):
        picture = super().decode(latents)
        return torch.stack([picture, 1 - picture], dim=1)


def test_videos_are_lists_of_pictures_and_saved_as_animations(lab, folder, tmp_path):
    policy = lab.policy(model=str(folder), adapter=Video, steps=3, evaluation_steps=3)

    def second(completions, pixels):
        assert all(isinstance(frames, videos.Video) and len(frames) == 2 for frames in completions)
        assert pixels[0].shape == (2, 3, 16, 16)
        return lab.redness([frames[1] for frames in completions])

    groupwise.train(
        policy=policy,
        algorithm="flow_grpo",
        prompts=[*ROWS, {"prompt": "no bird"}],
        rewards=[second],
        train={"steps": 1, "groups_per_step": 1, "group_size": 2},
        evaluation={"prompts": 1, "samples": 1},
        output=tmp_path / "run",
        quiet=True,
    )
    (saved,) = (tmp_path / "run" / "samples" / "after").iterdir()
    with Image.open(saved) as animation:
        assert animation.n_frames == 2
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "pipeline_tag: text-to-video" in card
    assert ').frames[0]\nexport_to_video(video, "video.mp4", fps=8)' in card


def test_a_rehearsal_draws_grey_videos(lab, folder):
    """Whether they are videos is the adapter's word: their latents have as many dimensions as those
    of pictures."""
    settings = lab.settings(model=str(folder), adapter=Video)
    rehearsal = FlowPolicy.rehearsal(settings)
    assert rehearsal.blank == "a grey video"
    rollouts = rehearsal.sample(ROWS, group_size=1, seeds=SEEDS)
    assert [type(video) for video in rollouts.completions] == [videos.Video] * 2
    assert rollouts.completions[0].pixels.shape == (2, 16, 16, 3)
    assert rollouts.facts["pixels"][0].shape == (2, 3, 16, 16)
