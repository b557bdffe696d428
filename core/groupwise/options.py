"""Options: field types for the `Config` of a plugin."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo


def _inside_folder(value: str, info: ValidationInfo) -> str:
    context = info.context or {}
    if not value or Path(value).is_absolute():
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
