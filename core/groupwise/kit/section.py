"""Section: the base of all sections of a configuration; PluginSection: one that names a plugin."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

KeyPath = tuple[str | int, ...]
"""The path to a key of a configuration: keys, and indices of list items."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, and values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PluginSection(Section):
    """A plugin's name and options; a string alone is short for `{name: string}`."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="a registered name, or `module:attribute`", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The plugin's own keys: all keys that the section itself does not define."""
        return dict(self.model_extra or {})


def mistake_at(path: KeyPath, message: str) -> PydanticCustomError:
    """An error about one key, raised by the validation of the section around it."""
    return PydanticCustomError("at", "{message}", {"path": path, "message": message})
