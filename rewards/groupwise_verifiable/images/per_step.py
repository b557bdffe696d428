"""A process reward for denoising steps, from a reward for pictures."""

import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from groupwise.kit.errors import did_you_mean
from groupwise.kit.section import PluginSection
from groupwise.registry import installed
from groupwise.rewards import Members, is_async
from groupwise_verifiable.images.pixels import picture, pixels


def _reward(value: Any, info: ValidationInfo) -> Any:
    """The reward itself, or the reward of a section with a name and options."""
    if callable(value):
        reward = value
    else:
        section = PluginSection.model_validate(value)
        target = installed().load("rewards", section.name)
        reward = _created(target, section, info.context)
    if is_async(reward):
        raise _at(("name",), "an async reward cannot be called step by step; use another one")
    try:
        learns = Members.of(reward).refresh is not None
    except ValueError as error:
        raise _at(("name",), str(error)) from None
    if learns:
        raise _at(("name",), "a reward that is trained cannot be called step by step; use another")
    return reward


def _created(target: Any, section: PluginSection, context: Any) -> Any:
    config, options = getattr(target, "Config", None), section.options
    if not isinstance(target, type):
        if options:
            raise _at(tuple(options)[:1], f"{section.name!r} is a function and takes no options")
        return target
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        return target(**options)
    try:
        return target(config.model_validate(options, context=context))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        message = first["msg"]
        if first["type"] == "extra_forbidden":
            close = did_you_mean(str(first["loc"][-1]), config.model_fields)
            message = f"no setting of {section.name}{close}"
        raise _at(first["loc"], message) from None


def _at(path: tuple[Any, ...], message: str) -> PydanticCustomError:
    return PydanticCustomError("at", "{message}", {"path": path, "message": message})


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

        reward: Annotated[Any, BeforeValidator(_reward)] = Field(
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
        if "images" in columns:
            columns = {**columns, "images": list(images)}
        return list(self.reward(prompts, pictures, **columns))


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else float(after) - float(before)
