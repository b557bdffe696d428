"""Disk: atomic writes, and readable messages for errors of the disk."""

import errno
import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

REASONS = {
    errno.ENOSPC: "no space left on device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the device fails",
    errno.ELOOP: "symbolic links form a loop",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "expected a folder, found a file",
    errno.EISDIR: "expected a file, found a folder",
    errno.ENXIO: "expected a file, found a pipe, a socket or a device",
    errno.EBUSY: "it is in use, or a disk is mounted there",
}
"""Messages for errors of the disk, by error number."""


def only_files(path: str, flags: int) -> int:
    """An opener for `open` that raises OSError for a pipe, which would wait, and for a device."""
    number = os.open(path, flags | os.O_NONBLOCK, 0o666)
    kind = os.fstat(number).st_mode
    if stat.S_ISREG(kind):
        return number
    os.close(number)
    code = errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO
    raise OSError(code, os.strerror(code), str(path))


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The text of a file. Raises OSError for anything else, such as a pipe."""
    with open(path, encoding="utf-8", errors=errors, opener=only_files) as file:
        return file.read()


def write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write a text to a file. Raises OSError for anything else, such as a pipe."""
    with open(path, "w", encoding="utf-8", errors=errors, opener=only_files) as file:
        file.write(text)


def write(path: Path, text: str) -> None:
    """Write a text to a file atomically: after a kill or on a full disk, the old file remains.

    Lone surrogates, which UTF-8 cannot encode, are escaped, as in JSON.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        write_text(fresh, text, errors="backslashreplace")
        fresh.replace(path)
    except OSError:
        remove(fresh)  # frees space if the disk is full
        raise


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ValueError, with the reason, if it cannot be read."""
    try:
        return json.loads(read_text(path))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is gone") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {reason(error)}") from error


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises ValueError if it does not."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise ValueError(f"{path} is damaged: expected an object, found {type(record).__name__}")
    return record


def readable_record(path: Path) -> dict[str, Any]:
    """The same; {} if it cannot be read."""
    try:
        return read_record(path)
    except ValueError:
        return {}


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content; of a symbolic link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def replace(path: Path, by: Path) -> None:
    """Remove `path` and rename the folder `by` to it."""
    remove(path)
    by.rename(path)


def open_to_others(folder: Path, *files: Path) -> None:
    """Let those read and write the files in a new folder who can read and write the folder.

    safetensors writes files that only their owner can read, whatever the umask. files: all if none.
    """
    allowed = folder.stat().st_mode & 0o666
    for path in files or folder.rglob("*"):
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) and mode | allowed != mode and not path.is_symlink():
            with suppress(OSError):  # a file system without modes
                path.chmod(stat.S_IMODE(mode) | allowed)


def sync(path: Path) -> None:
    """fsync a file or folder: wait until it is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def reason(error: BaseException) -> str:
    """A short reason for an error; for errors of the disk with the file's name."""
    if isinstance(error, OSError) and error.strerror:
        words = REASONS.get(error.errno or 0, error.strerror)
        return f"{words}: {error.filename}" if error.filename else words
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if REASONS[errno.ENOSPC] in str(error).lower():  # safetensors and torch have own error types
        return REASONS[errno.ENOSPC]
    return " ".join(str(error).split())[:300] or type(error).__name__


def is_of_disk(error: BaseException) -> bool:
    """Whether the disk is the cause; safetensors and torch say so only in the message."""
    if isinstance(error, OSError) and error.errno in REASONS:
        return True
    return reason(error) == REASONS[errno.ENOSPC]
