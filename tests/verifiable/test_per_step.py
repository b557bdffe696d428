"""`per_step`: a reward of pictures, applied to the prediction after each denoising step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from groupwise.rewards import Reward
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.per_step import PerStep

LEVELS = [[0.1, 0.4, 0.35], [0.2, 0.2, 0.8]]
"""The brightness of the predictions of two completions."""


def rollouts_of(levels: list[list[float]]) -> Rollouts:
    predictions = [torch.tensor(own).view(-1, 1, 1, 1).expand(-1, 3, 4, 4) for own in levels]
    finals = [torch.full((3, 4, 4), own[-1] if own else 0.5) for own in levels]
    return Rollouts(
        prompts=[{"prompt": "p", "hue": "any"} for _ in levels],
        completions=["the picture itself" for _ in levels],
        groups=torch.zeros(len(levels), dtype=torch.int64),
        mask=torch.ones(len(levels), max(0, len(levels[0]) - 1), dtype=torch.bool),
        truncated=torch.zeros(len(levels), dtype=torch.bool),
        facts={"pixels": finals, "predictions": predictions},
    )


def brightness(prompts: Any, completions: Any, hue: Any, pixels: Any) -> list[float | None]:
    """The brightness of the tensors, checked against the pictures."""
    for shown, image in zip(completions, pixels, strict=True):
        if not isinstance(shown, str):
            assert shown.size == (4, 4)
            assert shown.getpixel((0, 0))[0] == round(float(image[0, 0, 0]) * 255)
    return [float(image.mean()) for image in pixels]


def steps_of(gives: str, levels: list[list[float]] = LEVELS) -> Tensor:
    reward = PerStep(PerStep.Config(reward=brightness, gives=gives))
    scores = Scorer([Reward(name="steps", function=reward)])(rollouts_of(levels))
    assert scores.steps is not None
    return scores.steps


def test_gives_value_rewards_a_decision_by_its_next_prediction() -> None:
    expected = torch.tensor([own[1:] for own in LEVELS], dtype=torch.float64)
    torch.testing.assert_close(steps_of("value"), expected, rtol=0, atol=1e-6)


def test_gives_gain_rewards_a_decision_by_the_change_of_predictions() -> None:
    expected = torch.tensor([[0.3, -0.05], [0.0, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(steps_of("gain"), expected, rtol=0, atol=1e-6)


def test_a_prediction_without_a_reward_gives_no_step_reward() -> None:
    def only_bright(prompts: Any, completions: Any, pixels: Any) -> list[float | None]:
        return [float(one.mean()) if one.mean() > 0.25 else None for one in pixels]

    reward = PerStep(PerStep.Config(reward=only_bright))
    steps = Scorer([Reward(name="steps", function=reward)])(rollouts_of(LEVELS)).steps
    expected = torch.tensor([[math.nan, -0.05], [math.nan] * 2], dtype=torch.float64)
    torch.testing.assert_close(steps, expected, rtol=0, atol=1e-6, equal_nan=True)


def test_evaluation_gives_the_reward_of_the_final_picture() -> None:
    reward = PerStep(PerStep.Config(reward=brightness))
    scores = Scorer([Reward(name="steps", function=reward)])(rollouts_of([[], []]))
    assert scores.steps is None
    assert scores.values.flatten().tolist() == [0.5, 0.5]


def test_needed_columns_are_checked_before_the_run() -> None:
    reward = Reward(name="steps", function=PerStep(PerStep.Config(reward=brightness)))
    assert "predictions" in reward.parameters[0]
    with pytest.raises(ValueError, match="needs the column 'hue'"):
        reward.check_columns({}, ("pixels", "predictions"))
    with pytest.raises(ValueError, match="needs the column 'predictions'"):
        reward.check_columns({"hue": None}, ("pixels",))


def test_the_reward_is_configured_as_under_rewards() -> None:
    made = PerStep.Config.model_validate(
        {"reward": {"name": "image_contents", "mode": "partial"}}
    ).reward
    assert isinstance(made, ImageContents)
    assert made.config.mode == "partial"
    loads: list[bool] = []

    class Loaded:
        def load(self) -> None:
            loads.append(True)

        def __call__(self, prompts: Any, completions: Any) -> list[float]:
            raise AssertionError

    PerStep(PerStep.Config(reward=Loaded())).load()
    assert loads == [True]


async def async_reward(prompts: Any, completions: Any) -> list[float]:
    raise AssertionError


class TrainedReward:
    def refresh(self, rollouts: Any, scores: Any) -> None:
        raise AssertionError

    def __call__(self, prompts: Any, completions: Any) -> list[float]:
        raise AssertionError


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"name": "image_content"}, "did you mean 'image_contents'"),
        ({"name": "image_contents", "moed": "partial"}, "image_contents, did you mean 'mode'"),
        ({"name": "image_contents", "mode": "most"}, "Input should be 'strict'"),
        (async_reward, "an async reward cannot be called by another one"),
        (TrainedReward(), "a reward that is trained cannot be called by another one"),
    ],
)
def test_async_trained_and_invalid_rewards_are_refused(reward: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PerStep.Config(reward=reward)
