"""The recipes for the real models: each key is valid, and a step of each runs on stand-ins."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from groupwise.config import load_config
from groupwise.run import train_from_config
from groupwise.sections import RewardSection

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
ROWS = [
    {
        "prompt": f"{letter} cat",
        "include": [{"class": "square", "count": 1, "color": "red"}],
        "text": letter,
    }
    for letter in "abcdefgh"
]
SMALL = (
    "policy.height=16",
    "policy.width=16",
    "policy.prompt_tokens=12",
    "policy.evaluation_steps=3",
    "policy.precision=float32",
    "train.groups_per_step=2",
    "train.group_size=2",
    "train.steps=1",
    "evaluation.prompts=2",
    "evaluation.samples=2",
    "prompts.held_out=0.5",
)
CLIP = {
    "embed_dim": 8,
    "vision_cfg": {
        "image_size": 16,
        "layers": 1,
        "width": 16,
        "head_width": 8,
        "patch_size": 8,
    },
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1},
}
PUBLISHED = {
    "sd35_geneval.yaml": ("sd3.5", 10, 40, 4.5, 0.7, 0.04, 32, 1e-4),
    "sd35_ocr.yaml": ("sd3.5", 10, 40, 4.5, 0.7, 0.04, 32, 1e-4),
    "sd35_pickscore.yaml": ("sd3.5", 10, 40, 4.5, 0.7, 0.01, 32, 1e-4),
    "flux_pickscore.yaml": ("flux", 6, 28, 3.5, 0.9, 0.0, 64, 1e-4),
    "sd35_geneval_fast.yaml": ("sd3.5", 10, 40, 1.0, 0.8, 0.0, 32, 1e-5),
}


def test_all_recipes_are_tested():
    assert {path.name for path in RECIPES.iterdir()} == PUBLISHED.keys()


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """A dataset with every column, and a random CLIP."""
    folder = tmp_path_factory.mktemp("stand_ins")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "clip").mkdir()
    said = {"model_cfg": CLIP, "preprocess_cfg": {}}
    (folder / "clip" / "open_clip_config.json").write_text(json.dumps(said))
    torch.manual_seed(0)
    weights = open_clip.model.CLIP(**CLIP).state_dict()
    save_file(weights, folder / "clip" / "open_clip_model.safetensors")
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_states_what_was_published(name):
    config = load_config(RECIPES / name).config
    _, steps, evaluation_steps, guidance, noise, beta, rank, clip = PUBLISHED[name]
    policy, algorithm, train = config.policy.options, config.algorithm.options, config.train
    assert (policy["steps"], policy["evaluation_steps"]) == (steps, evaluation_steps)
    assert (policy["guidance"], policy["noise_level"]) == (guidance, noise)
    assert (policy["lora"]["rank"], policy["lora"]["alpha"]) == (rank, 2 * rank)
    assert policy["prompt_tokens"] == 128
    assert algorithm["clip_low"] == clip
    assert algorithm.get("beta", 0.0) == beta
    assert (train.groups_per_step, train.group_size, train.updates_per_rollout) == (48, 24, 2)
    assert (train.learning_rate, train.ema, train.ema_every) == (3e-4, 0.9, 8)


@pytest.mark.filterwarnings("ignore:reward 'image_contents'. the detector")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_step_of_it_runs_on_tiny_stand_ins(name, lab, stand_ins, tmp_path):
    loaded = load_config(
        RECIPES / name,
        [
            *SMALL,
            f"policy.model={lab.folders[PUBLISHED[name][0]]}",
            f"prompts.path={stand_ins / 'rows.jsonl'}",
            f"output={tmp_path / 'run'}",
            *stood_in(RECIPES / name, stand_ins / "clip"),
        ],
    )
    # Random pictures hold nothing and say nothing, and equal rewards teach nothing.
    loaded.config.rewards.append(RewardSection(name="jpeg_size"))
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 1
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[1])["ratio_error"] < 1e-5
    assert json.loads(metrics[1])["grad_norm"] > 0
    assert "watch/image_diversity" in result.after
    assert (tmp_path / "run" / "model" / "pytorch_lora_weights.safetensors").is_file()
    assert len(list((tmp_path / "run" / "samples" / "after").glob("*.png"))) == 4


def stood_in(recipe, clip):
    """Overrides that put small things in the place of models from the hub."""
    config = load_config(recipe).config
    for key, sections in (("rewards", config.rewards), ("watch", config.watch)):
        for number, section in enumerate(sections):
            if "preset" in section.options:
                yield f"{key}.{number}.model={clip}"
            if "detector" in section.options:
                yield f"{key}.{number}.detector=shapes"
