"""All that this plugin registers passes the checks of `groupwise.testing`; broken adapters fail."""

import re
from dataclasses import replace

import pytest
import torch
from diffusers import DiffusionPipeline
from tests.flow.forms import FORMS

from groupwise import Policy, testing
from groupwise.registry import installed
from groupwise_flow import testing as laws
from groupwise_flow.adapters.sd3 import SD3Adapter
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.testing import own
from groupwise_testing.policy import gradients, outputs
from groupwise_testing.policy.case import Case

ADAPTERS = {
    "StableDiffusion3Pipeline": ("sd3", "sd3.5", "sd3 shifting"),
    "FluxPipeline": ("flux", "flux unguided"),
    "StableDiffusionPipeline": ("sd15", "sd15 v"),
    "StableDiffusionXLPipeline": ("sdxl", "sdxl ddim"),
}
ALGORITHMS = [
    ("flow_grpo", {}),
    ("flow_grpo", {"beta": 0.1}),
    ("flow_grpo", {"kl": "published", "beta": 0.1}),
    ("flow_guard", {"beta": 0.1}),
    ("flow_dppo", {"beta": 0.1, "max_divergence": 0.05}),
    ("flash_grpo", {}),
    ("tempflow", {"beta": 0.1}),
    ("nft", {}),
    ("nft", {"decay": 0.5, "beta": 0.1}),
    ("awm", {}),
    ("elbo_grpo", {"beta": 0.1}),
]


def latent(log_probs: torch.Tensor) -> torch.Tensor:
    """[b, t, 2], for outputs that the toy policy of the laws does not have."""
    return torch.stack([log_probs, log_probs.square()], dim=2)


EXTRAS = {
    "velocity": latent,
    "target_velocity": lambda log_probs: latent(log_probs.detach()) - 1,
    "noised": lambda log_probs: latent(log_probs.detach()) + 2,
    "clean": lambda log_probs: latent(log_probs.detach()) - 0.5,
    "sigma": lambda log_probs: torch.full_like(log_probs, 0.6),
    "relative_std": lambda log_probs: torch.full_like(log_probs, 1.5),
    "relative_slope": lambda log_probs: torch.full_like(log_probs, 0.7),
}
SIZE = {"height": 16, "width": 24, "prompt_tokens": 12}


@pytest.mark.parametrize(("name", "settings"), ALGORITHMS)
def test_algorithm(name, settings):
    kind = installed().load("algorithms", name)
    algorithm = kind(kind.Config(**settings))
    extras = {name: EXTRAS[name] for name in algorithm.outputs & EXTRAS.keys()}
    testing.check_algorithm(algorithm, extras=extras)


SHARING = {"window": {"kind": "random", "size": 2}, "shared_noise": True}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "settings", [{}, {"architecture": "flux"}, {"guidance": 3.0, "lora": {"rank": 2}}, SHARING]
)
def test_policy(lab, settings):
    policy = lab.policy(**settings)
    lab.nudge(policy)
    testing.check_policy(policy, lab.rows, group_size=2)
    testing.check_sampler(policy, policy, lab.rows, group_size=2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow(after=6)
def test_form(lab, form, rounding):
    """Ratio one also within rounding: the law's own bound is one for any half precision."""
    policy = lab.policy(**FORMS[form])
    policy.begin(1)
    case = Case(policy, lab.rows, 2, None)
    testing.hold(form, (outputs.ratio, *gradients.LAWS), case)
    sampled = case.rollouts.sampler_log_probs
    if sampled is not None:
        with torch.no_grad():
            rounding.same(lambda: policy(case.rollouts).log_probs, sampled)


def test_a_gradient_without_the_unconditional_branch_breaks_the_law_unless_it_is_declared(
    lab, monkeypatch
):
    policy = lab.policy(guidance=4.5, guidance_gradient="conditional")
    monkeypatch.setattr(FlowPolicy, "with_constants", Policy.with_constants)
    with pytest.raises(
        AssertionError, match=r"the gradient of (log_probs|mean) predicts .* and the"
    ):
        testing.hold("flow", gradients.LAWS, Case(policy, lab.rows, 2, None))


def test_a_policy_that_takes_a_groups_seed_from_its_place_in_a_batch_breaks_the_law(
    lab, monkeypatch
):
    policy = lab.policy(**SHARING)
    sample = FlowPolicy.sample

    def by_place(self, prompts, *, group_seeds=None, **named):
        return sample(self, prompts, **named)

    monkeypatch.setattr(FlowPolicy, "sample", by_place)
    with pytest.raises(AssertionError, match=r"rollout 1 of row 0 sampled alone and with others"):
        testing.check_sampler(policy, policy, lab.rows, group_size=2)


def test_an_adapter_whose_gradient_is_cut_is_named(lab):
    policy = lab.policy(lora={"rank": 2})
    layer = policy.adapter.model.transformer_blocks[0].attn.to_v
    layer.lora_A["default"].register_forward_hook(lambda *args: args[2].detach())
    with pytest.raises(
        AssertionError, match=r"transformer_blocks\.0\.attn\.to_v\.lora_A.* most: 0 "
    ):
        testing.hold("flow", gradients.LAWS, Case(policy, lab.rows, 2, None))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("pipeline", "folder"), [(name, folder) for name in ADAPTERS for folder in ADAPTERS[name]]
)
def test_adapter(lab, pipeline, folder):
    adapter = installed().load("adapters", pipeline)
    testing.check_adapter(adapter, pipeline_of(lab, folder), rows=lab.rows, prompt_tokens=12)


def pipeline_of(lab, folder="sd3"):
    return DiffusionPipeline.from_pretrained(lab.folders[folder])


# ---- for each law an adapter that breaks it


class Elsewhere(SD3Adapter):
    trained = ("unet",)


class BySelection(SD3Adapter):
    def encode(self, rows):
        conditions = super().encode(rows)
        return {name: value + 0.1 * len(rows) for name, value in conditions.items()}


class Flat(SD3Adapter):
    def velocity(self, *rest, **more):
        return super().velocity(*rest, **more).flatten(1)


class Centred(SD3Adapter):
    def velocity(self, *rest, **more):
        velocity = super().velocity(*rest, **more)
        return velocity - velocity.mean(dim=0, keepdim=True)


class Unmasked(SD3Adapter):
    by_token = ("embeds",)

    def encode(self, rows):
        conditions = super().encode(rows)
        mask = torch.ones(conditions["embeds"].shape[:2], dtype=torch.bool)
        mask[:, -3:] = False
        return {**conditions, "mask": mask}

    @property
    def tokens(self):
        return self.prompt_tokens + 16  # T5's and CLIP's


class IgnoresTime(SD3Adapter):
    def velocity(self, latents, sigma, conditions, **more):
        return super().velocity(latents, sigma * 0, conditions, **more)


class GuidesAlways(SD3Adapter):
    def guide(self, conditional, unconditional, scale):
        return super().guide(conditional, unconditional, scale + 1)


class OtherLevels(SD3Adapter):
    def sigmas(self, steps):
        return super().sigmas(steps).square()


class Reversed(SD3Adapter):
    def velocity(self, *rest, **more):
        return -super().velocity(*rest, **more)


class Deaf(SD3Adapter):
    def unconditional_row(self, row, negative_prompt):
        return super().unconditional_row(row, "")


class GuidesOtherwise(SD3Adapter):
    def guide(self, conditional, unconditional, scale):
        return super().guide(conditional, unconditional, scale**2)


class Cropped(SD3Adapter):
    def decode(self, latents):
        return super().decode(latents)[..., :8]


class Darkened(SD3Adapter):
    def decode(self, latents):
        return super().decode(latents) * 2 - 1


class SavesHalf(SD3Adapter):
    def save_lora(self, folder, weights):
        halves = {
            name: replace(each, layers={n: w / 2 for n, w in each.layers.items()})
            for name, each in weights.items()
        }
        super().save_lora(folder, halves)


BROKEN = [
    ("the trained module is in the pipeline", Elsewhere),
    ("conditions have one width and a mask", BySelection),
    ("latents and velocities have the right shapes", Flat),
    ("batching does not change an answer", Centred),
    ("masked tokens have no effect", Unmasked),
    ("velocities depend on prompts and noise levels", IgnoresTime),
    ("no guidance is the conditional velocity", GuidesAlways),
    ("noise levels are the pipeline's own", OtherLevels),
    ("denoising is the pipeline's own", Reversed),
    ("guidance is the pipeline's own", GuidesOtherwise),
    ("a negative prompt is the pipeline's own", Deaf),
    ("pictures have the requested size", Cropped),
    ("pictures are the pipeline's own", Darkened),
    ("what is trained can be saved, and is read back", SavesHalf),
]


def test_every_law_has_an_adapter_that_breaks_it():
    elsewhere = own.depends_on_sources.name  # test_editing.py
    names = [law.name for law in laws.LAWS if law.name != elsewhere]
    assert [name for name, _ in BROKEN] == names


def test_the_error_names_the_shapes_of_conditions_of_two_widths(lab):
    class Wide(SD3Adapter):
        def encode(self, rows):
            conditions = super().encode(rows)
            return {**conditions, "embeds": conditions["embeds"][:, : 4 + len(rows)]}

    with pytest.raises(AssertionError, match=r"embeds of row 0 are \[1, 5, .*\] alone and \[1, 6"):
        testing.check_adapter(Wide, pipeline_of(lab), rows=lab.rows[:2], **SIZE)


@pytest.mark.parametrize(("name", "adapter"), BROKEN)
def test_an_adapter_that_breaks_a_law_is_reported_by_the_name_of_the_law(lab, name, adapter):
    with pytest.raises(AssertionError, match=f'breaks the law "{re.escape(name)}": '):
        testing.check_adapter(adapter, pipeline_of(lab), rows=lab.rows, **SIZE)
