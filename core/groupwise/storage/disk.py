"""Disk: files that are there whole or not at all, and errors of a disk in a user's words."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

REASONS = {
    errno.ENOSPC: "no space left on device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the device fails",
    errno.ELOOP: "symbolic links lead in a circle",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EISDIR: "a folder is in the place of a file",
    errno.EBUSY: "it is in use, or a disk is mounted there",
}
"""What the system says of a disk, by error number."""


def write(path: Path, text: str) -> None:
    """Put a text in place of a file: a kill or a full disk leaves the one that was there.

    Lone surrogates, which UTF-8 has no form for, become their escapes: what JSON would have.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_text(text, encoding="utf-8", errors="backslashreplace")
        fresh.replace(path)
    except OSError:
        remove(fresh)  # on a full disk every byte counts
        raise


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises ValueError, with the reason, where it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is gone") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {reason(error)}") from error


def read_record(path: Path) -> dict[str, Any]:
    """The same, of a file that holds an object."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise ValueError(f"{path} is damaged: expected an object, found {type(record).__name__}")
    return record


def remove(path: Path) -> None:
    """Remove a file, or a folder and all within it; of a symbolic link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def replace(path: Path, by: Path) -> None:
    """Give a finished folder the name of another, which goes."""
    remove(path)
    by.rename(path)


def sync(path: Path) -> None:
    """Have what was written on the disk and not only in the system's memory."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def reason(error: BaseException) -> str:
    """Why, in a few words; of an error of the disk with the file's name."""
    if isinstance(error, OSError) and error.strerror:
        words = REASONS.get(error.errno or 0, error.strerror)
        return f"{words}: {error.filename}" if error.filename else words
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if REASONS[errno.ENOSPC] in str(error).lower():  # safetensors and torch, with a name of theirs
        return REASONS[errno.ENOSPC]
    return " ".join(str(error).split())[:300] or type(error).__name__


def is_of_disk(error: BaseException) -> bool:
    """Whether the disk is at fault; safetensors and torch say so in words alone."""
    if isinstance(error, OSError) and error.errno in REASONS:
        return True
    return reason(error) == REASONS[errno.ENOSPC]
