"""Recipes of models that edit: their sources' settings, their memory, a step on stand-ins."""

import json

import pytest
from PIL import Image
from tests.flow.stand_ins import MODELS, published
from tests.flow.test_recipes import RECIPES, SMALL, check_stated

from groupwise.config.load import load_config
from groupwise.kit.memory import Workload
from groupwise.registry import installed
from groupwise.run.train import train_from_config

pytestmark = pytest.mark.slow

NFT = {
    "policy.lora": {"rank": 64, "alpha": 128},
    "policy.height": 512,
    "policy.guidance": 1.0,
    "algorithm.decay": 0.5,
    "algorithm.decay_rise": 1e-3,
    "algorithm.scale": "group",
    "algorithm.advantage_clip": 5.0,
    "train.groups_per_step": 32,
    "train.group_size": 16,
    "train.learning_rate": 2e-4,
    "train.weight_decay": 1e-4,
}
SOURCES = {
    "kontext_edit_judge": (
        ("flux_kontext", "flux_kontext"),
        {
            **NFT,
            "policy.steps": 20,
            "policy.evaluation_steps": 28,
            "policy.decisions": 18,
            "algorithm.beta": 1e-3,
            "train.updates_per_rollout": 1,
        },
    ),
    "qwen_image_edit_judge": (
        ("qwen_image_edit", "qwen_image_edit"),
        {
            **NFT,
            "policy.steps": 30,
            "policy.evaluation_steps": 40,
            "policy.decisions": 5,
            "algorithm.beta": 2e-4,
            "train.updates_per_rollout": 2,
        },
    ),
    "qwen_image_edit_pickscore": (
        ("qwen_image_edit 2511", "qwen_image_edit"),
        {
            "policy.lora.rank": 64,
            "policy.lora.alpha": 128,
            "policy.height": 512,
            "policy.steps": 12,
            "policy.evaluation_steps": 40,
            "policy.guidance": 4.0,
            "policy.negative_prompt": " ",
            "policy.noise_level": 0.7,
            "policy.window": {"kind": "random", "size": 3, "until": 0.34},
            "algorithm.clip_low": 1e-4,
            "train.steps": 300,
            "train.groups_per_step": 32,
            "train.group_size": 16,
            "train.updates_per_rollout": 2,
            "train.learning_rate": 3e-4,
            "train.weight_decay": 1e-4,
        },
    ),
    "flux2_klein_edit_judge": (
        ("flux2_klein edit", "flux2_klein distilled"),
        {
            "policy.lora.rank": 16,
            "policy.lora.alpha": 32,
            "policy.height": 512,
            "policy.steps": 10,
            "policy.guidance": 1.0,
            "policy.sde": "dance",
            "policy.noise_level": 0.7,
            "policy.shared_noise": True,
            "policy.window": {"kind": "random", "size": 3, "until": 0.3},
            "algorithm.clip_low": 5e-3,
            "train.groups_per_step": 64,
            "train.group_size": 16,
            "train.updates_per_rollout": 2,
            "train.learning_rate": 5e-5,
            "train.weight_decay": 0.0,
        },
    ),
}
"""By recipe its stand-in, its published model, and what the source that it names has, in our
terms."""


@pytest.mark.parametrize("name", SOURCES)
def test_a_recipe_states_what_its_source_does(name):
    check_stated(name, SOURCES[name][1])


@pytest.mark.parametrize("name", SOURCES)
def test_a_recipe_fits_on_a_gpu_of_80_gb(name, lab, tmp_path):
    """All of it, also while it samples and updates."""
    stand_in, model = SOURCES[name][0]
    folder = published.write(published.MODELS[model], lab.folders[stand_in], tmp_path / "model")
    config = load_config(RECIPES / f"{name}.yaml").config
    kind = installed().load("policies", config.policy.name)
    settings = kind.Config(**{**config.policy.options, "model": str(folder)})
    counts = {"rollouts": 16, "group_size": 16, "averages": 1, "training": True, "reference": False}
    update = kind.estimate(settings, Workload(decisions=1, sampled=0, **counts))
    sampling = kind.estimate(settings, Workload(decisions=0, sampled=16, **counts))
    assert not [name for name in sampling if "not counted" in name]
    assert update["transformer"] / 2 == pytest.approx(published.PARAMETERS[model], rel=0.02)
    assert max(sum(update.values()), sum(sampling.values())) < 75e9


@pytest.mark.parametrize("name", SOURCES)
def test_a_step_of_a_recipe_runs_on_tiny_models(name, lab, tmp_path, rounding):
    stand_in = MODELS[SOURCES[name][0][0]]
    colors = ("red", "green", "blue", "white", "black", "yellow", "cyan", "grey")
    for color in colors:
        Image.new("RGB", (90, 70), color).save(tmp_path / f"{color}.png")
    is_klein = "klein" in name
    rows = [
        {"prompt": f"{letter} cat", "media": [own] * 2, "image": f"{color}.png"}
        for letter, color in zip("abcdefgh", colors, strict=True)
        for own in [{"modality": "image", "role": "condition", "uri": f"{color}.png"}]
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load_config(RECIPES / f"{name}.yaml").config
    options = {**dict(config.policy.options.get("adapter", {})), **stand_in.options}
    sizes = [
        *SMALL,
        *(f"policy.{key}={value}" for key, value in stand_in.size.items()),
        *([f"policy.adapter={json.dumps(options)}"] if stand_in.options else ()),
        *(["policy.steps=6"] if "window" in config.policy.options else ["policy.decisions=2"]),
        f"policy.model={lab.folders[SOURCES[name][0][0]]}",
        f"prompts.path={tmp_path / 'rows.jsonl'}",
        f"output={tmp_path / 'run'}",
        "rewards=[jpeg_size,{name: unchanged, constraint: {at_least: 0.75}}]",
    ]
    result = train_from_config(load_config(RECIPES / f"{name}.yaml", sizes), quiet=True)
    assert result.steps == 1
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert metrics["grad_norm"] > 0
    assert 0 < metrics["rewards/unchanged"] < 1
    assert "multipliers/unchanged/at_least" in metrics
    assert (tmp_path / "run" / "model" / "pytorch_lora_weights.safetensors").is_file()
    sample = json.loads((tmp_path / "run/samples/after.jsonl").read_text().splitlines()[0])
    assert len(sample["images"]) == (2 if is_klein else 1)
