"""Landlock: the kernel holds a process to one folder, without namespaces and without root.

The numbers are those of linux/landlock.h; those of the calls are the same on every processor. What
Landlock does not hold back, the list of calls for a folder (`groupwise_sandbox.system_calls`) does:
modes, owners, times and attributes of files, sockets, signals. It remains that a process may ask
whether a file outside is there, and for its size and time.
"""

import ctypes
import os
import struct
from functools import cache
from typing import Any

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION, _BENEATH = 1, 1
_WRITE, _READ, _READ_FOLDER, _REMOVE_FOLDER, _REMOVE = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
_MAKE_FOLDER, _MAKE_FILE, _MAKE_SYMLINK = 1 << 7, 1 << 8, 1 << 12
_MOVE, _TRUNCATE = 1 << 13, 1 << 14
_ALLOWED = _WRITE | _READ | _READ_FOLDER | _REMOVE_FOLDER | _REMOVE | _MAKE_FOLDER | _MAKE_FILE
_ALLOWED |= _MAKE_SYMLINK | _MOVE | _TRUNCATE
_FILES = ((1, 13), (2, 14), (3, 15), (5, 16))
"""From which version on there are how many rights of files."""
_NETWORK, _SCOPES = 0b11, 0b11
"""TCP, from version 4; abstract sockets and signals to others, from version 6."""


def version() -> int:
    """The kernel's version of Landlock; 0 where there is none, or where it is refused."""
    return max(0, _call()(_CREATE, None, ctypes.c_long(0), _ASK_VERSION))


def restrict(folder: str) -> None:
    """Hold this process to what lies in a folder, for ever; it may execute nothing.

    New privileges have to be forbidden before. Raises OSError if the kernel refuses.
    """
    has = version()
    files = (1 << max((count for since, count in _FILES if has >= since), default=0)) - 1
    rules = struct.pack("=QQQ", files, _NETWORK if has >= 4 else 0, _SCOPES if has >= 6 else 0)[
        : 8 if has < 4 else 16 if has < 6 else 24
    ]
    ruleset = _checked(_CREATE, rules, len(rules), 0)
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        _checked(_ADD, ruleset, _BENEATH, struct.pack("=Qi", _ALLOWED & files, place), 0)
        _checked(_RESTRICT, ruleset, 0)
    finally:
        os.close(place)
        os.close(ruleset)


def _checked(number: int, *arguments: Any) -> int:
    """What a system call returns. Raises OSError."""
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    returned: int = _call()(number, *wide)
    if returned < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return returned


@cache
def _call() -> Any:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function
