"""View: what a process with a folder of its own sees of files: the folder, and nothing else."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise_sandbox import landlock, namespaces, system_calls

FOLDER = "/folder"
"""The folder, by the name that it has in messages, and wherever a process has a root of its own."""
DESCRIPTORS = 32
"""The most of a process with a folder."""


def root(folder: Mapping[str, Any]) -> str:
    """What stands before the folder's name. Under Landlock root hides the machine, while it can,
    by a root of its own: else a process could ask whether a file is there."""
    if folder["way"] == "namespaces":
        return ""
    if os.getuid() == 0:
        os.chroot(folder["root"])
        return ""
    return str(folder["root"])


def enter(folder: Mapping[str, Any], before: str) -> str:
    """Leave this process in its folder, whose path is returned. Raises OSError.

    folder: `way`, "namespaces" or "landlock"; `space`, its most bytes; for Landlock `root`, a
        folder of the machine in which it lies.
    before: what stands before its name.
    """
    path = before + FOLDER
    if folder["way"] == "namespaces":
        namespaces.enter(folder["space"])
        Path(path).mkdir(mode=0o700)
        Path("/").chmod(0o555)
    else:
        system_calls.forbid_new_privileges()
        landlock.restrict(path)
    os.chdir(path)
    tempfile.tempdir = path
    return path
