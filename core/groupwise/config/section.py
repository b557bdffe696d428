"""Section: what all sections of a configuration share; one that names a plugin."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from groupwise.config.yaml_lines import KeyPath


class Section(BaseModel):
    """What all sections share: unknown keys are errors, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PluginSection(Section):
    """A plugin by its name; a text alone is short for `{name: text}`."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="a registered name, or `module:attribute`", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The plugin's own keys: all that the section itself does not know."""
        return dict(self.model_extra or {})


def mistake_at(path: KeyPath, message: str) -> PydanticCustomError:
    """An error of a whole section that is about one of its keys."""
    return PydanticCustomError("at", "{message}", {"path": path, "message": message})
