"""Recipes of the models in the box: their sources' settings, their memory, a step on stand-ins."""

import json

import pytest
from tests.flow.stand_ins import MODELS, published
from tests.flow.test_recipes import RECIPES, SMALL, check_stated

from groupwise.config.load import load_config
from groupwise.kit.memory import Workload
from groupwise.registry import installed
from groupwise.run.train import train_from_config

pytestmark = pytest.mark.slow

FLOW_FACTORY = {
    "policy.lora": {"rank": 64, "alpha": 128},
    "policy.guidance": 4.0,
    "policy.noise_level": 0.7,
    "policy.window.size": 1,
    "algorithm.clip_low": 1e-4,
    "train.groups_per_step": 48,
    "train.group_size": 16,
    "train.updates_per_rollout": 2,
    "train.learning_rate": 3e-4,
    "train.weight_decay": 1e-4,
    "train.ema": 0.9,
    "train.ema_every": 4,
}
SOURCES = {
    "z_image": {
        **FLOW_FACTORY,
        "policy.guidance": 4.0 + 1,  # theirs is off at 0
        "policy.height": 512,
        "policy.steps": 10,
        "policy.evaluation_steps": 40,
    },
    "flux2_klein": {
        **FLOW_FACTORY,
        "policy.height": 384,
        "policy.steps": 8,
        "policy.evaluation_steps": 28,
    },
    "flux2": {
        **FLOW_FACTORY,
        "policy.noise_level": 1.0,
        "policy.height": 512,
        "policy.steps": 8,
        "policy.evaluation_steps": 28,
    },
    "qwen_image": {
        "policy.height": 512,
        "policy.steps": 10,
        "policy.evaluation_steps": 50,
        "policy.guidance": 4.0,
        "policy.negative_prompt": " ",
        "policy.noise_level": 1.2,
        "policy.window": {"kind": "random", "size": 2, "until": 0.4},
        "policy.lora.rank": 64,
        "policy.lora.alpha": 128,
        "algorithm.clip_low": 1e-4,
        "algorithm.scale": "batch",
        "train.groups_per_step": 32,
        "train.group_size": 16,
        "train.updates_per_rollout": 2,
        "train.learning_rate": 3e-4,
        "train.weight_decay": 1e-4,
        "train.ema": None,
    },
    "sana": {
        "policy.height": 1024,
        "policy.steps": 10,
        "policy.evaluation_steps": 40,
        "policy.guidance": 1.0,
        "policy.lora": {"rank": 4, "alpha": 4},
        "policy.prompt_tokens": 300,
        "algorithm.beta": 1e-4,
        "train.groups_per_step": 48,
        "train.group_size": 24,
        "train.learning_rate": 3e-4,
        "train.weight_decay": 1e-4,
        "train.ema": 0.9,
        "train.ema_every": 1,
    },
    "lumina2": {
        "policy.height": 512,
        "policy.steps": 10,
        "policy.evaluation_steps": 40,
        "policy.guidance": 4.0,
        "policy.noise_level": 0.7,
        "policy.lora": {"rank": 32, "alpha": 64},
        "algorithm.clip_low": 1e-4,
        "train.groups_per_step": 48,
        "train.group_size": 24,
        "train.learning_rate": 3e-4,
    },
}
"""By model, what the source that its recipe names has, in our terms."""


def recipe(model):
    return RECIPES / f"{model}_pickscore.yaml"


@pytest.mark.parametrize("model", SOURCES)
def test_a_recipe_states_what_its_source_does(model):
    check_stated(recipe(model).stem, SOURCES[model])


@pytest.mark.parametrize("model", SOURCES)
def test_a_recipe_fits_on_gpus_of_80_gb(model, lab, tmp_path):
    """Its weights, with what trains them, on one of them, or on eight where it is sharded;
    docs/models.md has the activations, too."""
    folder = published.write(published.MODELS[model], lab.folders[model], tmp_path / "model")
    config = load_config(recipe(model)).config
    policy, gpus = config.policy, 8 if config.train.shard else 1
    kind = installed().load("policies", policy.name)
    settings = kind.Config(**{**policy.options, "model": str(folder)})
    counts = {"decisions": 0, "sampled": 0, "rollouts": 768, "group_size": 16, "averages": 1}
    sizes = kind.estimate(settings, Workload(**counts, training=True, reference=False))
    width = 4 if settings.precision == "float32" else 2
    parameters = sizes["transformer"] / width
    assert parameters == pytest.approx(published.PARAMETERS[model], rel=0.02)
    assert sum(sizes.values()) / gpus < 50e9


@pytest.mark.parametrize("model", SOURCES)
def test_a_step_of_a_recipe_runs_on_tiny_models(model, lab, tmp_path, rounding):
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{letter} cat"}) + "\n" for letter in "abcd")
    )
    size = [f"policy.{key}={value}" for key, value in MODELS[model].size.items()]
    sizes = [
        *SMALL,
        *size,
        "policy.steps=4",
        f"policy.model={lab.folders[model]}",
        f"prompts.path={tmp_path / 'rows.jsonl'}",
        f"output={tmp_path / 'run'}",
        "rewards=[jpeg_size]",
        "watch=[image_diversity]",
    ]
    result = train_from_config(load_config(recipe(model), sizes), quiet=True)
    assert result.steps == 1
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])
    if "mismatch/max" in metrics:
        assert metrics["mismatch/max"] <= rounding.ratio_bound(result.policy, {"prompt": "a cat"})
    assert metrics["grad_norm"] > 0
    assert (tmp_path / "run" / "model" / "pytorch_lora_weights.safetensors").is_file()
