"""A reward of pictures, applied to what each denoising step is predicted to lead to."""

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
"""How bright the predictions of two completions are."""


def rollouts_of(levels: list[list[float]]) -> Rollouts:
    predictions = [torch.tensor(own).view(-1, 1, 1, 1).expand(-1, 3, 4, 4) for own in levels]
    finals = [torch.full((3, 4, 4), own[-1] if own else 0.5) for own in levels]
    return Rollouts(
        prompts=[{"prompt": "p", "hue": "any"} for _ in levels],
        completions=["the picture itself" for _ in levels],
        groups=torch.zeros(len(levels), dtype=torch.int64),
        mask=torch.ones(len(levels), max(0, len(levels[0]) - 1), dtype=torch.bool),
        truncated=torch.zeros(len(levels), dtype=torch.bool),
        facts={"images": finals, "predictions": predictions},
    )


def brightness(prompts: Any, completions: Any, hue: Any, images: Any) -> list[float | None]:
    """Of the tensors; the pictures say the same to a byte."""
    for shown, image in zip(completions, images, strict=True):
        if not isinstance(shown, str):
            assert shown.size == (4, 4)
            assert shown.getpixel((0, 0))[0] == round(float(image[0, 0, 0]) * 255)
    return [float(image.mean()) for image in images]


def steps_of(gives: str, levels: list[list[float]] = LEVELS) -> Tensor:
    reward = PerStep(PerStep.Config(reward=brightness, gives=gives))
    scores = Scorer([Reward(name="steps", function=reward)])(rollouts_of(levels))
    assert scores.steps is not None
    return scores.steps


def test_a_decision_is_worth_what_follows_it() -> None:
    expected = torch.tensor([own[1:] for own in LEVELS], dtype=torch.float64)
    torch.testing.assert_close(steps_of("value"), expected, rtol=0, atol=1e-6)


def test_a_decision_is_worth_what_it_has_added() -> None:
    expected = torch.tensor([[0.3, -0.05], [0.0, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(steps_of("gain"), expected, rtol=0, atol=1e-6)


def test_a_prediction_without_a_reward_gives_no_step() -> None:
    def bright_alone(prompts: Any, completions: Any, images: Any) -> list[float | None]:
        return [float(one.mean()) if one.mean() > 0.25 else None for one in images]

    reward = PerStep(PerStep.Config(reward=bright_alone))
    steps = Scorer([Reward(name="steps", function=reward)])(rollouts_of(LEVELS)).steps
    expected = torch.tensor([[math.nan, -0.05], [math.nan] * 2], dtype=torch.float64)
    torch.testing.assert_close(steps, expected, rtol=0, atol=1e-6, equal_nan=True)


def test_at_evaluation_it_is_the_reward_of_the_picture() -> None:
    reward = PerStep(PerStep.Config(reward=brightness))
    scores = Scorer([Reward(name="steps", function=reward)])(rollouts_of([[], []]))
    assert scores.steps is None
    assert scores.values.flatten().tolist() == [0.5, 0.5]


def test_what_the_reward_needs_is_seen_before_the_run() -> None:
    reward = Reward(name="steps", function=PerStep(PerStep.Config(reward=brightness)))
    assert "predictions" in reward.parameters[0]
    with pytest.raises(ValueError, match="needs the column 'hue'"):
        reward.check_columns({}, ("images", "predictions"))
    with pytest.raises(ValueError, match="needs the column 'predictions'"):
        reward.check_columns({"hue": None}, ("images",))


def test_a_reward_is_named_as_it_is_under_rewards() -> None:
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


async def waits(prompts: Any, completions: Any) -> list[float]:
    raise AssertionError


class Learns:
    def refresh(self, rollouts: Any, scores: Any) -> None:
        raise AssertionError

    def __call__(self, prompts: Any, completions: Any) -> list[float]:
        raise AssertionError


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ({"name": "image_content"}, "did you mean 'image_contents'"),
        ({"name": "image_contents", "moed": "partial"}, "image_contents, did you mean 'mode'"),
        ({"name": "image_contents", "mode": "most"}, "Input should be 'strict'"),
        (waits, "an async reward cannot be called step by step"),
        (Learns(), "a reward that is trained cannot be called step by step"),
    ],
)
def test_rewards_that_are_refused(reward: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        PerStep.Config(reward=reward)
