"""Every setting of a scheduler is right, by diffusers' own pipeline call, or refused."""

import inspect
import json
import shutil

import diffusers
import pytest
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler

from groupwise.errors import UserError

DYNAMIC = {"use_dynamic_shifting": True}
RIGHT = {
    "num_train_timesteps": (400, {}),
    "shift": (1.7, {}),
    "use_dynamic_shifting": (True, {}),
    "base_shift": (0.9, DYNAMIC),
    "max_shift": (2.0, DYNAMIC),
    "base_image_seq_len": (8, DYNAMIC),
    "max_image_seq_len": (300, DYNAMIC),
    "time_shift_type": ("linear", DYNAMIC),
    "shift_terminal": (0.1, {}),
    "use_karras_sigmas": (True, {}),
    "use_exponential_sigmas": (True, {}),
    "use_beta_sigmas": (True, {}),
}
"""A value that is not the default, and what the setting takes effect with."""
REFUSED = {
    "stochastic_sampling": "stochastic_sampling: True",
    "invert_sigmas": "invert_sigmas: True",
}


def folder_with(lab, tmp_path, name, settings, kind="FlowMatchEulerDiscreteScheduler"):
    """A copy of a pipeline's folder, with another scheduler."""
    folder = shutil.copytree(lab.folders[name], tmp_path / "model")
    config = {"_class_name": kind, "shift": 3.0, **settings}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    index = json.loads((folder / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", kind]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def latents_of(policy, rows):
    """The latents of an evaluation."""
    latents, completions = [], policy.adapter.completions
    policy.adapter.completions = lambda x: latents.append(x) or completions(x)
    policy.sample(rows, group_size=1, seeds=[5, 6], purpose="evaluate")
    return latents[0]


def test_every_setting_of_the_installed_diffusers_is_tested_here():
    """If this fails, a version of diffusers has a new setting: say whether it is right."""
    settings = set(inspect.signature(FlowMatchEulerDiscreteScheduler).parameters)
    assert settings == RIGHT.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", ["sd3", "flux"])
@pytest.mark.parametrize("setting", RIGHT)
def test_a_setting_draws_the_latents_of_the_pipeline(lab, tmp_path, name, setting):
    value, others = RIGHT[setting]
    folder = folder_with(lab, tmp_path / "with", name, {**others, setting: value})
    policy = lab.policy(name, model=str(folder), guidance=2.0)
    pipeline = DiffusionPipeline.from_pretrained(folder)
    expected = lab.pipelines_images(pipeline, policy, lab.rows, [5, 6], "latent")
    latents = latents_of(policy, lab.rows)
    assert (latents - expected).abs().max() < 2e-5
    folder = folder_with(lab, tmp_path / "without", name, others)
    without = lab.policy(name, model=str(folder), guidance=2.0)
    assert (latents - latents_of(without, lab.rows)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["sd3", "flux"])
@pytest.mark.parametrize("setting", REFUSED)
def test_other_settings_are_refused_by_name(lab, tmp_path, name, setting):
    folder = folder_with(lab, tmp_path, name, {setting: True})
    with pytest.raises(UserError, match=REFUSED[setting]):
        lab.policy(name, model=str(folder))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("FlowMatchLCMScheduler", {}),  # new noise in each step
        (
            "DPMSolverMultistepScheduler",
            {"use_flow_sigmas": True, "prediction_type": "flow_prediction"},
        ),
        (
            "UniPCMultistepScheduler",
            {"use_flow_sigmas": True, "prediction_type": "flow_prediction"},
        ),
    ],
)
def test_schedulers_with_other_steps_are_refused(lab, tmp_path, kind, settings):
    assert hasattr(diffusers, kind)
    folder = folder_with(lab, tmp_path, "sd3", settings, kind)
    with pytest.raises(UserError, match=rf"{kind} would draw others"):
        lab.policy("sd3", model=str(folder))
