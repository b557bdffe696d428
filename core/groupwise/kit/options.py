"""Options: field types for the `Config` of a plugin, and objects in the place of options."""

from collections.abc import Iterable
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

from groupwise.kit.errors import did_you_mean


def _placed(value: str, info: ValidationInfo) -> str | None:
    """Where a path exists, by the first folder in which it does; None if in none."""
    for folder in (*searched(info), Path()):  # an absolute path stays itself
        if (folder / value).expanduser().exists():
            return value if folder == Path() else str(folder / value)
    return None


def _to_write(value: str, info: ValidationInfo) -> str:
    try:
        return _placed(value, info) or value
    except OSError:  # no file can have such a name
        return value


def _inside_folder(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str) or not value:
        return value
    try:
        placed = _placed(value, info)
    except OSError:  # no file can have such a name
        return value
    if placed is not None:
        return placed
    folders = searched(info)
    # The name of no model, on no hub. `init` checks a file in a folder that it makes later.
    if value.startswith((".", "/", "~")) and all(folder.is_dir() for folder in folders):
        raise ValueError(f"no such file or folder as {value!r}{nearest(value, folders)}")
    return value


def searched(info: ValidationInfo) -> list[Path]:
    """The folders in which relative paths of a configuration are looked for, before the current
    one."""
    context = info.context or {}
    names = (context.get("folder"), context.get("begun_in"))
    return [Path(name) for name in names if name is not None]


def nearest(value: str, folders: Iterable[Path]) -> str:
    """The nearest name of a file to that of a path which does not exist, and where it was looked
    for, as the end of a sentence."""
    places = [*dict.fromkeys((folder / value).parent.resolve() for folder in (*folders, Path()))]
    there = [place for place in places if place.is_dir()]
    names = sorted({path.name for place in there for path in place.iterdir()})
    looked = " and ".join(map(str, places))
    return f"{did_you_mean(Path(value).name, names)} (looked in {looked})"


PathOrName = Annotated[str, AfterValidator(_inside_folder)]
"""A path relative to the configuration file if it exists there; else a name, unchanged.

A resumed run also looks in the folder from which the run was first started. What can only be a
path, as it begins with `.`, `/` or `~`, must exist.
"""

PathToWrite = Annotated[str, AfterValidator(_to_write)]
"""A path that a run may write to: one relative to the configuration file if it exists there."""

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
    _instance: Any = PrivateAttr(None)

    @property
    def instance(self) -> Any:
        """The object; None where a path or a name was given."""
        return self._instance

    @model_validator(mode="wrap")
    @classmethod
    def _keeps_the_object(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        value = data.get(cls.taken) if isinstance(data, dict) else None
        if value is None or isinstance(value, str):
            return handler(data)
        name = getattr(value, "name_or_path", "") or f"the {type(value).__name__}"
        config = handler({**data, cls.taken: str(name)})
        config._instance = value
        return config
