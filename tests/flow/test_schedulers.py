"""Every setting of a scheduler is right, by diffusers' own pipeline call, or refused."""

import inspect
import json
import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import diffusers
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
)
from tests.flow.conftest import diffusion

from groupwise.kit.errors import UserError
from groupwise_flow.adapters.sdxl import SDXLAdapter
from groupwise_flow.preflight import _scheduler_notes
from groupwise_flow.process.schedules import levels, levels_before

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


SOLVERS = [
    name
    for name in DDIMScheduler._compatibles
    if name not in ("DDIMScheduler", "EulerDiscreteScheduler", "EDMEulerScheduler")
]
SPACINGS = ("leading", "linspace", "trailing")
SIGMAS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas")
TABLE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
OTHER_LEVELS = {
    ("PNDMScheduler", "linspace"),  # its last two levels are the same
    ("DDPMScheduler", "linspace"),  # its timesteps are rounded
    *(("DEISMultistepScheduler", name) for name in SIGMAS[:3]),  # as PNDM's
}
"""Solvers that have no scheduler with Euler's steps at their levels, with what makes it so."""


def variants(name):
    """Every spacing and kind of levels that a solver has, with and without its other defaults."""
    kind = getattr(diffusers, name)
    known = inspect.signature(kind).parameters
    fixed = {**TABLE, **({"skip_prk_steps": True} if "skip_prk_steps" in known else {})}
    for spacing in SPACINGS if "timestep_spacing" in known else [None]:
        for sigmas in (None, *(each for each in SIGMAS if each in known)):
            own = {"timestep_spacing": spacing} if spacing else {}
            offset = {"steps_offset": 1} if spacing == "leading" else {}
            chosen = {sigmas: True} if sigmas else {}
            yield {spacing, sigmas}, kind(**fixed, **own, **offset, **chosen)


@pytest.fixture(scope="module")
def pipeline():
    return diffusion("sdxl", "euler")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.slow(after=4)
def test_an_exchanged_scheduler_has_the_levels_of_the_pipelines_own_or_both_are_shown(
    pipeline, name
):
    """`levels` also compares the steps with Euler's."""
    if name == "DPMSolverSDEScheduler" and find_spec("torchsde") is None:
        with pytest.raises(ImportError, match="torchsde"):
            next(variants(name))
        return
    for settings, solver in variants(name):
        pipeline.scheduler = solver
        adapter = SDXLAdapter(pipeline, height=16, width=16, prompt_tokens=12)
        kept = not any((name, each) in OTHER_LEVELS for each in settings)
        counts = {"steps": 3, "evaluation_steps": 24}
        first, *others = _scheduler_notes(adapter, SimpleNamespace(**counts))
        assert f"in place of the pipeline's {name}" in first
        notes = dict(zip(counts, others, strict=False))
        for key, steps in counts.items():
            trained, own = levels(adapter, steps), levels_before(adapter, steps)
            same = are_equal(own, trained)
            assert same == kept == (key not in notes), (settings, steps)
            for values in () if same else (trained, own):
                assert " ".join(f"{value:.3f}" for value in values.tolist()) in notes[key]
        for steps in range(2, 51) if kept else ():
            assert are_equal(levels_before(adapter, steps), levels(adapter, steps)), settings


def are_equal(left, right):
    return left.shape == right.shape and bool((left - right).abs().max() < 1e-6)


def test_defaults_of_a_solver_that_differ_from_those_of_the_other_class_are_kept(pipeline):
    """`from_config` leaves out what is a default: the end of PNDM, and all of Heun's table."""
    pndm = PNDMScheduler(**TABLE, skip_prk_steps=True, steps_offset=1)
    for solver in (pndm, HeunDiscreteScheduler()):
        pipeline.scheduler = solver
        adapter = SDXLAdapter(pipeline, height=16, width=16, prompt_tokens=12)
        trained, own = levels(adapter, 10), levels_before(adapter, 10)
        torch.testing.assert_close(trained, own, rtol=0, atol=1e-6)
        made = adapter.exchanged.kind.from_config(solver.config, **adapter.exchanged.settings)
        assert torch.equal(made.betas, solver.betas)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_sana_is_trained_at_the_levels_of_its_own_solver(lab, shift):
    policy = lab.policy("sana")
    adapter = policy.adapter
    adapter.own_scheduler.register_to_config(flow_shift=shift)
    adapter.pipeline.scheduler.register_to_config(flow_shift=shift)
    for steps in (2, 3, 10, 20, 37):
        trained, own = levels(adapter, steps), levels_before(adapter, steps)
        torch.testing.assert_close(trained, own, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("kind", [DDIMScheduler, PNDMScheduler, DPMSolverMultistepScheduler])
@pytest.mark.parametrize("predicts", ["epsilon", "v_prediction"])
def test_noise_is_not_predicted_from_noise_alone(pipeline, kind, spacing, predicts):
    """A model that predicts epsilon is refused at level 1; one that predicts v is not."""
    own = {"rescale_betas_zero_snr": True, "timestep_spacing": spacing, "prediction_type": predicts}
    known = inspect.signature(kind).parameters
    pipeline.scheduler = kind(**TABLE, **{k: v for k, v in own.items() if k in known})
    adapter = SDXLAdapter(pipeline, height=16, width=16, prompt_tokens=12)
    first = float(adapter.levels_of(adapter.pipeline.scheduler, 4)[0])
    assert (first == 1) == (kind is DDIMScheduler and spacing != "leading")
    if predicts == "epsilon" and first == 1:
        with pytest.raises(UserError, match="predicts epsilon, and its first sample is noise"):
            levels(adapter, 4)
        return
    sigmas = adapter.sigmas(4)
    latents = torch.ones(2, 4, 2, 2)
    velocity = adapter.from_prediction(latents, latents / 2, sigmas[:2].float())
    assert velocity.isfinite().all()


def test_flow_sigmas_of_a_model_that_predicts_noise_are_refused(pipeline):
    pipeline.scheduler = DPMSolverMultistepScheduler(**TABLE, use_flow_sigmas=True)
    with pytest.raises(UserError, match="this one predicts epsilon; set it to false"):
        SDXLAdapter(pipeline, height=16, width=16, prompt_tokens=12)


def test_every_setting_of_the_installed_diffusers_is_tested_here():
    """If this fails, a version of diffusers has a new setting: say whether it is right."""
    settings = set(inspect.signature(FlowMatchEulerDiscreteScheduler).parameters)
    assert settings == RIGHT.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", ["sd3", "flux"])
@pytest.mark.parametrize("setting", RIGHT)
@pytest.mark.slow(after=1)
def test_a_setting_draws_the_latents_of_the_pipeline(lab, tmp_path, name, setting, rounding):
    value, others = RIGHT[setting]
    folder = folder_with(lab, tmp_path / "with", name, {**others, setting: value})
    policy = lab.policy(name, model=str(folder), guidance=2.0)
    pipeline = DiffusionPipeline.from_pretrained(folder)
    expected = lab.pipelines_images(pipeline, policy, lab.rows, [5, 6], "latent")
    latents = latents_of(policy, lab.rows)
    rounding.same(lambda: latents_of(policy, lab.rows), expected)
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
