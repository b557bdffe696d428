"""Wrapped: a reward as the option of another reward, which calls it on other completions."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from groupwise.kit.errors import did_you_mean
from groupwise.kit.section import PluginSection
from groupwise.registry import installed
from groupwise.rewards import Members, is_async


def _reward(value: Any, info: ValidationInfo) -> Any:
    """The reward itself, or the reward of a section with a name and options."""
    if callable(value):
        reward = value
    else:
        section = PluginSection.model_validate(value)
        target = installed().load("rewards", section.name)
        reward = _created(target, section, info.context)
    if is_async(reward):
        raise _at(("name",), "an async reward cannot be called by another one; use a plain one")
    try:
        learns = Members.of(reward).refresh is not None
    except ValueError as error:
        raise _at(("name",), str(error)) from None
    if learns:
        raise _at(("name",), "a reward that is trained cannot be called by another one")
    return reward


Wrapped = Annotated[Any, BeforeValidator(_reward)]
"""The type of such an option. Refused: an async reward, and one that is trained in the run."""


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
