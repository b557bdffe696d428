"""Recipes train on the published rewards and are evaluated by the strict rule of their task."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from groupwise.config.load import load_config
from groupwise.registry import installed

FOLDER = Path(__file__).parents[2] / "examples" / "recipes"
# Those of images: a recipe of text trains on the strict rule itself; those of videos are in
# tests/flow/test_video_recipes.py, those that edit in tests/flow/test_edit_recipes.py.
OTHERS = {path for path in FOLDER.glob("*.yaml") if "\n  frames:" in path.read_text("utf-8")}
OTHERS |= {*FOLDER.glob("*_edit_*.yaml")}
RECIPES = sorted({*FOLDER.glob("*.yaml")} - OTHERS - {*FOLDER.glob("qwen3_*.yaml")})
TRAINED = {
    "sd35_geneval": {"name": "image_contents", "mode": "flow_grpo", "colors": "clip"},
    "sd35_geneval_fast": {"name": "image_contents", "mode": "flow_grpo", "colors": "clip"},
    "sd35_ocr": {"name": "image_text", "detect": True, "inside": True},
    "sd35_pickscore": {"name": "preference", "preset": "pickscore"},
    **{
        f"{name}_pickscore": {"name": "preference", "preset": "pickscore"}
        for name in (
            *("sdxl", "flux", "flux2", "flux2_klein"),
            *("z_image", "qwen_image", "sana", "lumina2"),
        )
    },
    "sd15_compressibility": {"name": "jpeg_size"},
    "flux_unified_reward": {"name": "judge_ranking", "format": "unified_reward_2"},
}
JUDGED = {
    "sd35_geneval": {"name": "image_contents", "mode": "geneval", "colors": "clip"},
    "sd35_geneval_fast": {"name": "image_contents", "mode": "geneval", "colors": "clip"},
    "sd35_ocr": {"name": "image_text", "detect": True},
}


def judge(config: Any) -> dict[str, object] | None:
    """The watched reward that `evaluation.accuracy` names."""
    (section,) = [each for each in config.watch if each.title == config.evaluation.accuracy] or [
        None
    ]
    return section and {"name": section.name, **section.options}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_on_the_published_reward_and_is_evaluated_by_the_strict_one(
    path: Path,
) -> None:
    loaded = load_config(path)
    (reward,) = loaded.config.rewards
    assert TRAINED[path.stem].items() <= {"name": reward.name, **reward.options}.items()
    judged, expected = judge(loaded.config), JUDGED.get(path.stem)
    assert (judged is None) == (expected is None)
    if judged is not None and expected is not None:
        assert expected.items() <= judged.items()
        assert "inside" not in judged
        assert judged.get("detector") == reward.options.get("detector")
    # Rewards of preference have no threshold between right and wrong.
    assert "threshold" not in loaded.config.evaluation.model_fields_set


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_reward_of_a_recipe_is_constructed_without_weights(path: Path) -> None:
    config = load_config(path).config
    rewards = [*config.rewards, *config.watch]
    for section in rewards:
        target = installed().load("rewards", section.name)
        if hasattr(target, "Config"):
            target = target(target.Config.model_validate(section.options))
        else:
            named = [each.name for each in inspect.signature(target).parameters.values()]
            assert section.options.keys() <= {*named}, section.name
        assert callable(target)
    assert len(rewards) >= 3
