"""Options: field types for the `Config` of a plugin."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from groupwise.errors import did_you_mean


def _inside_folder(value: str, info: ValidationInfo) -> str:
    if not value:
        return value
    folders = searched(info)
    try:
        for folder in (*folders, Path()):  # an absolute path stays itself
            if (folder / value).expanduser().exists():
                return value if folder == Path() else str(folder / value)
    except OSError:  # no file can have such a name
        return value
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
