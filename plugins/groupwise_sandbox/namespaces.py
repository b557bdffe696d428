"""Namespaces: a process sees an empty file system of a bounded size, and nothing else."""

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from groupwise_sandbox import system_calls

_NEW_USERS, _NEW_MOUNTS = 0x10000000, 0x00020000
_NEW = _NEW_USERS | _NEW_MOUNTS | 0x40000000 | 0x08000000 | 0x04000000
"""And CLONE_NEWNET, NEWIPC and NEWUTS."""
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_NO_SETUID, _NO_DEVICES, _NO_EXECUTION = 2, 4, 8
_DETACH = 2
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_ENTRIES = 4096
"""The most files and folders."""
_MOUNTED_AT = "/usr"
"""Any folder that every machine has; it is hidden from this process alone."""


def enter(space: int) -> None:
    """Leave this process in the root of a file system of so many bytes, in memory.

    It vanishes with the process. Raises OSError where the kernel refuses.
    """
    _unshare(_NEW)
    _mount(space, _MOUNTED_AT, _NO_EXECUTION)
    os.chdir(_MOUNTED_AT)
    _pivot_root(b".", b".")  # the former root lies above the new one until it is taken off
    _checked("umount2", b".", _DETACH)
    os.chdir("/")
    _give_up()


def hold(space: int, place: str) -> None:
    """Let this process, and those that it starts, see such a file system at a folder.

    Raises OSError where the kernel refuses.
    """
    _unshare(_NEW_USERS | _NEW_MOUNTS)
    _mount(space, place, 0)
    _give_up()


def _unshare(kinds: int) -> None:
    """Take namespaces of these kinds, one of users among them, where this user is who it was."""
    user, group = os.getuid(), os.getgid()
    _checked("unshare", kinds)
    system_calls.own_its_entries()
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(content, encoding="ascii")


def _mount(space: int, place: str, flags: int) -> None:
    _checked("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    options = f"size={space},nr_inodes={_ENTRIES},mode=0700".encode()
    flags |= _NO_SETUID | _NO_DEVICES
    _checked("mount", b"folder", place.encode(), b"tmpfs", flags, options)


def _give_up() -> None:
    """Have no capability any more."""
    _checked("capset", struct.pack("=Ii", _CAPABILITIES, 0), bytes(24))


def _checked(name: str, *arguments: Any) -> None:
    """Call a function of the C library. Raises OSError."""
    _raise_for(_library()[name], name, *arguments)


def _pivot_root(new: bytes, old: bytes) -> None:
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    _raise_for(partial(_library().syscall, number), "pivot_root", new, old)


def _raise_for(function: Callable[..., int], name: str, *arguments: Any) -> None:
    if function(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]
    return library
