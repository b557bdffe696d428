"""Recipes of models of videos: their sources' settings, their memory, a step on stand-ins."""

import json

import pytest
from tests.flow.stand_ins import MODELS, published
from tests.flow.test_recipes import RECIPES, SMALL, check_stated

from groupwise.config.load import load_config
from groupwise.kit.memory import Workload
from groupwise.registry import installed
from groupwise.run.train import train_from_config

pytestmark = pytest.mark.slow

SOURCES = {
    "wan21_clip_pickscore": (
        "wan21",
        {
            "policy.adapter.shift": 3.0,
            "policy.height": 256,
            "policy.frames": 5,
            "policy.evaluation_size": {"height": 480, "width": 480, "frames": 13},
            "policy.steps": 10,
            "policy.guidance": 5.0,
            "policy.noise_level": 0.9,
            "policy.lora.rank": 64,
            "train.groups_per_step": 48,
            "train.group_size": 16,
            "train.learning_rate": 1e-4,
        },
    ),
    "wan22_pickscore": (
        "wan22",
        {
            "policy.height": 480,
            "policy.frames": 5,
            "policy.steps": 10,
            "policy.guidance": 4.0,
            "policy.adapter.guidance_2": 3.0,
            "train.group_size": 16,
            "train.learning_rate": 1e-4,
        },
    ),
    "wan21_pickscore": (
        "wan21 1.3B",
        {
            "policy.adapter.shift": 5.0,
            "policy.height": 720,
            "policy.width": 1280,
            "policy.frames": 5,
            "policy.steps": 14,
            "policy.sde": "dance",
            "policy.noise_level": 0.7,
            "policy.window": {"kind": "fixed", "size": 7},
            "train.groups_per_step": 48,
            "train.group_size": 16,
            "train.learning_rate": 3e-4,
        },
    ),
    "wan22_5b_hps_v3": (
        "wan22_5b",
        {
            "policy.height": 704,
            "policy.width": 1280,
            "policy.frames": 9,  # 8 there, of which the pipeline makes 9
            "policy.steps": 10,
            "policy.guidance": 5.0,
            "policy.sde": "dance",
            "policy.noise_level": 1.2,
            "train.groups_per_step": 64,
            "train.group_size": 8,
            "train.learning_rate": 1e-5,
        },
    ),
    "hunyuan15_pickscore": (
        "hunyuan15",
        {
            "policy.height": 480,
            "policy.frames": 5,
            "policy.steps": 16,
            "policy.noise_level": 0.25,
            "train.group_size": 24,
            "train.learning_rate": 1e-5,
        },
    ),
    "hunyuan15_video_reward": (
        "hunyuan15",
        {
            "policy.height": 480,
            "policy.frames": 53,
            "policy.frame_rate": 8,
            "policy.steps": 16,
            "policy.sde": "dance",
            "policy.noise_level": 0.25,
            "policy.shared_noise": True,
            "policy.window": {"kind": "all", "share": 0.6},
            "train.keep.extremes": 8,
            "algorithm.clip_low": 1e-4,
            "algorithm.advantage_clip": 5.0,
            "train.group_size": 24,
            "train.learning_rate": 1e-5,
        },
    ),
}
"""By recipe its model, and what the source that it names has, in our terms."""


def brightness(completions, **_):
    """A reward for videos."""
    return [float(video.pixels.mean()) for video in completions]


@pytest.mark.parametrize("name", SOURCES)
def test_a_recipe_states_what_its_source_does(name):
    check_stated(name, SOURCES[name][1])


@pytest.mark.parametrize("name", SOURCES)
def test_a_recipe_fits_on_its_gpus(name, lab, tmp_path):
    """All of it, also while it samples and updates: on one of 80 GB, on eight if it is sharded."""
    model = SOURCES[name][0]
    stand_in = lab.folders[model.partition(" ")[0]]
    folder = published.write(published.MODELS[model], stand_in, tmp_path / "model")
    config = load_config(RECIPES / f"{name}.yaml").config
    kind = installed().load("policies", config.policy.name)
    settings = kind.Config(**{**config.policy.options, "model": str(folder)})
    counts = {"rollouts": 24, "group_size": 24, "averages": 0, "training": True, "reference": False}
    counts["shards"] = 8 if config.train.shard else 1
    update = kind.estimate(settings, Workload(decisions=1, sampled=0, **counts))
    sampling = kind.estimate(
        settings, Workload(decisions=0, sampled=config.train.sample_batch, **counts)
    )
    assert not [name for name in sampling if "not counted" in name]
    parameters = counts["shards"] * update["transformer"] / 2
    assert parameters == pytest.approx(published.PARAMETERS[model], rel=0.02)
    # The rest is for the reward's model and the allocator.
    assert max(sum(update.values()), sum(sampling.values())) < 70e9


@pytest.mark.parametrize("name", SOURCES)
def test_a_step_of_a_recipe_runs_on_tiny_models(name, lab, tmp_path, rounding):
    model = SOURCES[name][0].partition(" ")[0]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{letter} cat"}) + "\n" for letter in "abcd")
    )
    size = [f"policy.{key}={value}" for key, value in MODELS[model].size.items()]
    window = load_config(RECIPES / f"{name}.yaml").config.policy.options["window"]
    reward = f"{__name__}:brightness"
    sizes = [
        *SMALL,
        *size,
        "policy.steps=5",
        *([f"policy.window.size={min(2, window['size'])}"] if "size" in window else ()),
        f"policy.model={lab.folders[model]}",
        f"prompts.path={tmp_path / 'rows.jsonl'}",
        f"output={tmp_path / 'run'}",
        f"rewards=[{reward}]",
        "train.shard=false",
        "policy.evaluation_size=null",
    ]
    result = train_from_config(load_config(RECIPES / f"{name}.yaml", sizes), quiet=True)
    assert result.steps == 1
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert metrics["mismatch/max"] <= rounding.ratio_bound(result.policy, {"prompt": "a cat"})
    assert metrics["grad_norm"] > 0
    assert [*(tmp_path / "run" / "model").glob("*.safetensors")]
