"""Inventory: a list of a folder's files, with sizes and checksums, to verify a checkpoint."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from groupwise.storage.disk import only_files, read_json, reason, sync

FILES = "files.json"
"""The file of the list; it is written last."""


def sizes_and_checksums(paths: Iterable[Path]) -> dict[str, Any]:
    """Size and checksum of each file, after an fsync."""
    files = {}
    for path in paths:
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
    return files


def write_list(folder: Path, files: Mapping[str, Any]) -> None:
    (folder / FILES).write_text(json.dumps(files, indent=2), encoding="utf-8")
    sync(folder / FILES)
    sync(folder)


def problem(folder: Path, *, contents: bool | Collection[str] = False) -> str | None:
    """Why a folder is no whole checkpoint, by the sizes of its files; None if it is whole.

    contents: also compare checksums, of all files or of those named, which takes as long as reading
    them.
    """
    try:
        files = files_in(folder)
        for name, (size, digest) in files.items():
            length = (folder / name).stat().st_size
            if length != size:
                return f"{name} has {length} bytes, expected {size}"
            compared = contents if isinstance(contents, bool) else name in contents
            if compared and checksum(folder / name) != digest:
                return f"{name} has another checksum than when it was written"
    except (OSError, ValueError) as error:
        return reason(error)
    return None


def files_in(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and checksum of each listed file. Raises ValueError or OSError if there is no list."""
    files = read_json(folder / FILES)
    try:
        sizes = {name: (int(file["bytes"]), str(file["sha256"])) for name, file in files.items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{folder / FILES} is no list of files") from error
    for name in sizes:
        if Path(name).name != name:
            raise ValueError(f"{folder / FILES} names {name!r}, which is outside the folder")
    return sizes


def checksum(path: Path) -> str:
    with open(path, "rb", opener=only_files) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
