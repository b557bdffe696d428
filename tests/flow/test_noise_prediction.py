"""Stable Diffusion 1.5 and XL: diffusion models as flows, against diffusers' own pipelines."""

import copy
import json

import pytest
import torch
from diffusers import DDIMScheduler, DiffusionPipeline, PNDMScheduler
from tests.flow.stand_ins import published
from tests.flow.stand_ins.unet import SCHEDULERS
from tests.flow.test_recipes import RECIPES, ROWS, SMALL

from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.run.train import train_from_config
from groupwise_flow import sde
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy

XL = {"name": "StableDiffusionXLPipeline", "original_size": [64, 32], "crop": [3, 5]}
SKIP = {"name": "StableDiffusionXLPipeline", "clip_skip": 1}
CASES = [
    ("sd15", {}),
    ("sd15", {"guidance": 4.0, "negative_prompt": "two dogs", "height": 16, "width": 24}),
    ("sd15 v", {"guidance": 4.0}),
    ("sdxl", {}),
    ("sdxl", {"guidance": 4.0}),
    ("sdxl", {"guidance": 4.0, "adapter": SKIP}),
    ("sdxl ddim", {"guidance": 4.0, "negative_prompt": "two dogs", "adapter": XL}),
]


def latents_of(policy, rows):
    """The latents of an evaluation."""
    latents, completions = [], policy.adapter.completions
    policy.adapter.completions = lambda x: latents.append(x) or completions(x)
    policy.sample(rows, group_size=1, seeds=[5, 6], purpose="evaluate")
    return latents[0]


def pipeline_of(folder):
    """The pipeline as the model card tells to use it."""
    pipeline = DiffusionPipeline.from_pretrained(folder)
    if isinstance(pipeline.scheduler, PNDMScheduler):
        config = pipeline.scheduler.config
        pipeline.scheduler = DDIMScheduler.from_config(config, clip_sample=False)
    return pipeline


@pytest.mark.parametrize(("name", "settings"), CASES)
@pytest.mark.slow(after=1)
def test_latents_are_those_of_the_pipeline(lab, name, settings, rounding):
    policy = lab.policy(name, evaluation_steps=8, **settings)
    pipeline = pipeline_of(lab.folders[name])
    expected = lab.pipelines_images(pipeline, policy, lab.rows, [5, 6], "latent")
    rounding.same(lambda: policy.adapter.output(latents_of(policy, lab.rows)), expected)
    assert (expected[0] - expected[1]).abs().max() > 1e-3


def test_levels_are_ddims_and_end_above_0_where_it_does(lab, rounding):
    """SDXL's own settings of DDIM end at alphas_cumprod[0]: 0.028 of noise."""
    policy = lab.policy("sdxl ddim", steps=10)
    scheduler = policy.adapter.pipeline.scheduler
    squared = scheduler.alphas_cumprod[scheduler.timesteps].double()
    a, b = squared.sqrt(), (1 - squared).sqrt()
    rounding.same(lambda: policy.sigmas[:-1], b / (a + b))
    assert float(policy.sigmas[-1]) == pytest.approx(0.0284, abs=1e-4)
    times = policy.adapter.timestep(policy.sigmas[:-1])
    assert times.tolist() == [901, 801, 701, 601, 501, 401, 301, 201, 101, 1]
    assert float(lab.policy("sdxl", steps=10).sigmas[-1]) == 0


ENDS = ["sd15", "sd15 v", "sdxl ddim", "sdxl"]
"""Models whose last level is above 0, as published, and one where it is 0."""


def decoded(policy, data):
    """Pictures by the pipeline's autoencoder alone, of data as it was trained on."""
    vae = policy.adapter.pipeline.vae
    images = vae.decode(data / vae.config.scaling_factor, return_dict=False)[0]
    return (images / 2 + 0.5).clamp(0, 1)


@pytest.mark.parametrize("name", ENDS)
def test_latents_that_are_trained_on_are_those_that_are_decoded(lab, name, rounding):
    policy = lab.policy(name, kind=ForwardProcess, steps=4)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[5, 6])
    with torch.no_grad():
        clean = policy(rollouts, outputs=frozenset({"clean"})).extra["clean"][:, 0]
        rounding.same(lambda: decoded(policy, clean), lab.images_of(rollouts))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", ENDS)
def test_predictions_are_the_schedulers_pred_original_sample(lab, name, rounding):
    policy = lab.policy(name, steps=4, sde="ddim", noise_level=0.5)
    policy.prepare(outputs=policy.provides, facts=policy.optional_facts)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[5, 6])
    predictions = torch.stack(list(rollouts.facts["predictions"]))
    paths = torch.stack(list(rollouts.trajectory["path"]))
    scheduler, unet = policy.adapter.pipeline.scheduler, policy.adapter.pipeline.unet
    scheduler.set_timesteps(4)
    conditions = policy.guided.conditions(lab.rows)
    for number, time in enumerate(scheduler.timesteps):
        sigma = float(policy.sigmas[number])
        own = paths[:, number] / policy.adapter._unit(sigma)
        added = (
            {}
            if name.startswith("sd15")
            else {
                "text_embeds": conditions["pooled"],
                "time_ids": conditions["sizes"],
            }
        )

        def predicted(time=time, own=own, added=added):
            solver = copy.deepcopy(scheduler)  # which counts its steps
            output = unet(
                solver.scale_model_input(own, time),
                time,
                encoder_hidden_states=conditions["embeds"],
                added_cond_kwargs=added,
            ).sample
            data = solver.step(output, time, own).pred_original_sample
            return decoded(policy, data)

        with torch.no_grad():
            rounding.same(predicted, predictions[:, number])


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_a_step_with_noise_is_ddims(lab, prediction, eta):
    """Mean and noise, at every step, by diffusers' own scheduler on its own samples."""
    policy = lab.policy("sd15 v" if prediction == "v_prediction" else "sd15", steps=10)
    adapter, sigmas = policy.adapter, policy.sigmas.double()
    scheduler = adapter.pipeline.scheduler
    x, v, noise = torch.randn(3, 2, 4, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    for number, time in enumerate(scheduler.timesteps):
        s, after = sigmas[number], sigmas[number + 1]
        norm, norm_after = (torch.hypot(1 - each, each) for each in (s, after))
        data, own = x - s * v, x + (1 - s) * v
        a, b = (1 - s) / norm, s / norm
        predicted = own if prediction == "epsilon" else a * own - b * data
        expected = scheduler.step(predicted, time, x / norm, eta=eta, variance_noise=noise)
        step = sde.step(v, x, s, after, kind="ddim", noise_level=eta, noise=noise)
        gap = step.next_sample / norm_after - expected.prev_sample
        assert gap.abs().max() < 1e-6 * float(x.abs().max()) * (1 + number)


@pytest.mark.parametrize("kind", ["pndm", "ddim"])
def test_a_scheduler_of_other_steps_is_exchanged_or_refused(lab, kind):
    name = {"pndm": "sd15", "ddim": "sd15 v"}[kind]
    notes = FlowPolicy.examine(lab.settings(name), lab.rows)
    assert [note for note in notes if "drawn by DDIMScheduler (clip_sample" in note] == (
        list(notes) if kind == "pndm" else []
    )
    kept = {"name": "StableDiffusionPipeline", "exchange": False}
    if kind == "ddim":
        FlowPolicy.examine(lab.settings(name, adapter=kept), lab.rows)
        return
    with pytest.raises(UserError, match=r"not a flow-matching pipeline|would draw others|steps of"):
        FlowPolicy.examine(lab.settings(name, adapter=kept), lab.rows)


def test_each_scheduler_that_is_kept_has_eulers_steps(lab):
    adapter = lab.policy("sd15").adapter
    assert adapter.exchange(SCHEDULERS["pndm"]()).kind is DDIMScheduler
    assert adapter.exchange(SCHEDULERS["ddim"]()) is adapter.exchange(SCHEDULERS["euler"]()) is None


def test_the_final_latents_of_a_forward_process_are_drawn_with_training_guidance(lab):
    settings = {"kind": ForwardProcess, "steps": 4, "evaluation_steps": 4}
    trained = lab.policy("sd15", guidance=1.0, training_guidance=4.0, **settings)
    strong = lab.policy("sd15", guidance=4.0, **settings)
    drawn = trained.sample(lab.rows, group_size=1, seeds=[5, 6])
    shown = strong.sample(lab.rows, group_size=1, seeds=[5, 6], purpose="evaluate")
    assert torch.equal(lab.images_of(drawn), lab.images_of(shown))
    weak = trained.sample(lab.rows, group_size=1, seeds=[5, 6], purpose="evaluate")
    assert not torch.equal(lab.images_of(drawn), lab.images_of(weak))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_the_recipe_states_ddpos_settings_and_runs_a_step(lab, name, tmp_path, rounding):
    (path,) = RECIPES.glob(f"{name}_*.yaml")
    config = load_config(path).config
    policy, train = config.policy.options, config.train
    assert (policy["sde"], policy["noise_level"], policy["steps"]) == ("ddim", 1.0, 50)
    assert (policy["guidance"], policy["lora"]) == (5.0, {"rank": 4, "alpha": 4})
    assert (train.learning_rate, train.weight_decay, train.group_size) == (3e-4, 1e-4, 16)
    assert config.algorithm.options == {"clip_low": 1e-4, "advantage_clip": 5}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    sizes = [
        *SMALL,
        "policy.steps=5",
        f"policy.model={lab.folders[name]}",
        f"prompts.path={tmp_path / 'rows.jsonl'}",
        f"output={tmp_path / 'run'}",
        "rewards=[jpeg_size]",
        "watch=[image_diversity]",
    ]
    result = train_from_config(load_config(path, sizes), quiet=True)
    assert result.steps == 1
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert metrics["mismatch/max"] <= rounding.ratio_bound(result.policy, ROWS[0])
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("name", ["sd15", "sdxl"])
@pytest.mark.slow
def test_the_recipe_fits_on_one_gpu_of_80_gb(lab, name, tmp_path):
    folder = published.write(published.MODELS[name], lab.folders[name], tmp_path / "model")
    (path,) = RECIPES.glob(f"{name}_*.yaml")
    options = {**load_config(path).config.policy.options, "model": str(folder)}
    settings = FlowPolicy.Config(**options)
    counts = {"rollouts": 256, "group_size": 16, "training": True, "reference": False}
    for decisions, sampled in [(12544, 0), (0, 64)]:
        load = Workload(decisions=decisions, sampled=sampled, averages=0, **counts)
        sizes = FlowPolicy.estimate(settings, load)
        assert sizes["unet"] / 2 == pytest.approx(published.PARAMETERS[name], rel=0.01)
        assert not any("not counted" in purpose for purpose in sizes)
        assert ("activations" in sizes) == (decisions > 0)
        assert sum(sizes.values()) < 60e9
