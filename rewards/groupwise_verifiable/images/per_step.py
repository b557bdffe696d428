"""A process reward for denoising steps, from a reward for pictures."""

import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise.rewards import Members
from groupwise_verifiable.images.pixels import picture, pixels
from groupwise_verifiable.wrapped import Wrapped


class PerStep:
    """A reward of the pictures that the model predicts after each denoising step.

    A process reward, for policies that provide `predictions` x_0 ... x_T. Decision t gets r(x_t)
    (`value`), or r(x_t) - r(x_{t-1}) (`gain`); gains sum up to r(x_T) - r(x_0), and each decision
    gets credit for its own part. At evaluation, without decisions, it is the reward of the picture.

    The reward is called once per prediction with all rollouts, so reward and decoding cost
    `decisions + 1` times as much as for the final pictures.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `per_step`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        reward: Wrapped = Field(
            description="A reward for pictures, as under `rewards`: a name, and settings."
        )
        gives: Literal["gain", "value"] = Field(
            default="gain",
            description="gain: the increase of the predicted picture's reward by a decision; "
            "value: that reward itself.",
        )

    def __init__(self, config: Config) -> None:
        self.config = config
        self.reward = config.reward
        self._members = Members.of(self.reward)
        self.close, self.relative = self._members.close, self._members.relative
        own = inspect.signature(self.reward).parameters
        fact = inspect.Parameter("predictions", inspect.Parameter.KEYWORD_ONLY)
        last = [p for p in own.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
        rest = [p for p in own.values() if p not in last and p.name != fact.name]
        # The reward's own columns stay in the signature, so that they are checked before the run.
        self.__signature__ = inspect.Signature([*rest, fact, *last])

    def load(self) -> None:
        """Loads the reward's model, if it has one."""
        if self._members.load is not None:
            self._members.load()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[Any]:
        predictions = columns.pop("predictions")
        counts = {len(own) for own in predictions}
        if counts <= {0}:
            return list(self.reward(prompts, completions, **columns))
        if len(counts) > 1:
            raise ValueError(f"reward 'per_step': completions have {sorted(counts)} predictions")
        values = [
            self._values(prompts, [own[place] for own in predictions], columns)
            for place in range(self.config.gives == "value", *counts)
        ]
        if self.config.gives == "gain":
            values = [
                [_difference(*pair) for pair in zip(after, before, strict=True)]
                for before, after in pairwise(values)
            ]
        return [list(row) for row in zip(*values, strict=True)]

    def _values(
        self, prompts: Sequence[Any], images: Sequence[Any], columns: dict[str, Any]
    ) -> list[float | None]:
        """The reward of one prediction of each rollout, passed like a policy's pictures."""
        pictures = [picture(one) for one in pixels(images, reward="per_step")]
        if "pixels" in columns:
            columns = {**columns, "pixels": list(images)}
        return list(self.reward(prompts, pictures, **columns))


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else float(after) - float(before)
