"""Interpreter: which Python the commands of a shell find, with which packages."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise_sandbox.bubblewrap import PATHS


def settings_of(python: str | None, packages: Sequence[str]) -> Mapping[str, Any]:
    """`readable` and `variables` of a shell's `Setting`, in which `python` is this interpreter.

    python: its path; by default it is `/usr`'s, if that has one.
    packages: folders from which it imports besides its own, such as the `site-packages` of an
        environment.

    Raises ValueError where there is none.
    """
    if python is not None and shutil.which(python) is None:
        raise ValueError(f"python: there is no interpreter {python!r}")
    own = [Path(python).absolute(), Path(python).resolve()] if python else []
    places = [each.parents[1] for each in own if not each.is_relative_to("/usr")]
    missing = [each for each in packages if not Path(each).is_dir()]
    if missing:
        raise ValueError(f"packages: there is no folder {missing[0]!r}")
    folders = [str(Path(each).absolute()) for each in packages]
    return {
        "readable": (*map(str, places), *folders),
        "variables": {
            "PATH": ":".join([*(str(each.parent) for each in own), PATHS]),
            "PYTHONPATH": ":".join(folders),
        },
    }
