"""Options: field types for the `Config` of a plugin, and objects in the place of options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)


def _inside_folder(value: Any, info: ValidationInfo) -> Any:
    context = info.context or {}
    if not isinstance(value, str) or not value or Path(value).is_absolute():
        return value
    for folder in filter(None, (context.get("folder"), context.get("begun_in"))):
        try:
            if (Path(folder) / value).exists():
                return str(Path(folder) / value)
        except OSError:  # no file can have such a name
            return value
    return value


PathOrName = Annotated[str, AfterValidator(_inside_folder)]
"""A path relative to the configuration file if it exists there; else a name, unchanged.

A resumed run also looks in the folder from which the run was first started.
"""

PathNameOrObject = Annotated[
    Any, AfterValidator(_inside_folder), WithJsonSchema({"type": "string"})
]
"""The same, or in Python an object."""


@dataclass(frozen=True, kw_only=True)
class StandsFor:
    """What an object of another library stands for in Python, where a section names a plugin.

    kind: of the plugin, as in `groupwise.kinds`; plugin: its name; option: which of its options the
    object is.
    """

    kind: str
    plugin: str
    option: str


class TakesObject(BaseModel):
    """Base of a `Config` with an option that names what is loaded, or is the loaded object itself.

    taken: this option, a string; with an object it is the object's name, for messages.
    """

    taken: ClassVar[str] = "model"
    _given: Any = PrivateAttr(None)

    @property
    def given(self) -> Any:
        """The object; None where a path or a name was given."""
        return self._given

    @model_validator(mode="wrap")
    @classmethod
    def _keeps_the_object(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        value = data.get(cls.taken) if isinstance(data, dict) else None
        if value is None or isinstance(value, str):
            return handler(data)
        name = getattr(value, "name_or_path", "") or f"the {type(value).__name__}"
        config = handler({**data, cls.taken: str(name)})
        config._given = value
        return config
