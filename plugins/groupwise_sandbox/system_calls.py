"""System calls: those that a program may make; the kernel refuses all others (seccomp).

The list for Python has no call that opens a path, starts or signals a process, or makes a socket,
so a program can reach only what it holds: its own memory, and the descriptors that it was given.
The lists for programs in namespaces have paths, and for commands processes; none has sockets.
What is refused returns EPERM, which Python raises as PermissionError.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, Literal, TypeAlias

from groupwise_sandbox.call_numbers import MACHINES

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's struct seccomp_data
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 1, 38, 22, 2

_THREAD = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000  # CLONE_VM, FS, FILES, SIGHAND, THREAD
_NAMESPACES = 0x7E020000  # every CLONE_NEW flag
_FCNTL = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: no F_SETOWN
_F_SETFL = 4
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

Scope: TypeAlias = Literal["memory", "files", "processes"]
"""What a process may use: only what it holds, or a file system of its own, or that and processes.

The latter two are for namespaces, where there is nothing of the machine to be found.
"""


def is_supported() -> bool:
    """Whether this machine's processor and system are ones that the list is written for."""
    return sys.platform == "linux" and platform.machine() in MACHINES


def prepare() -> None:
    """Make, before any fork, what `restrict` and `end_with_parent` need."""
    _prctl(), _described()


def restrict() -> None:
    """Hold this process to the list, for ever. Raises OSError if the kernel refuses."""
    _set(_NO_NEW_PRIVILEGES, 1)
    _set(_SET_SECCOMP, _FILTER, ctypes.addressof(_described()[0]))


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; new rights undo it."""
    _set(_DEATH_SIGNAL, signal.SIGKILL)


def _set(option: int, *values: int) -> None:
    if _prctl()(option, *(*values, 0, 0, 0)[:4]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _prctl() -> Any:
    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return function


@cache
def _described() -> tuple[Any, Any]:
    """The kernel's struct sock_fprog of the list, and what it points to."""
    steps = program()
    filters = ctypes.create_string_buffer(steps, len(steps))
    length_and_address = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(filters))
    return ctypes.create_string_buffer(length_and_address, len(length_and_address)), filters


@cache
def program(scope: Scope = "memory") -> bytes:
    """The list as the kernel's filter of system calls."""
    calls = MACHINES[platform.machine()]
    numbers = [*calls.simple.values()]
    if scope != "memory":
        numbers += calls.files.values()
    if scope == "processes":
        numbers += calls.processes.values()
    rules = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, calls.architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, 0x40000000, 0, 1),  # the x32 numbers of the same calls
        _REFUSED,
    ]
    for number in numbers:
        rules += _rule(number, [_step(_RETURN, _ALLOW)])
    rules += _rule(calls.checked["clone"], _cloning(is_thread=scope != "processes"))
    rules += _rule(
        calls.checked["fcntl"], _one_of(_FCNTL if scope == "memory" else (*_FCNTL, _F_SETFL))
    )
    if scope != "memory":
        rules += _rule(calls.checked["ioctl"], _one_of(_IOCTL))
    # prlimit64(pid=0, resource, new, old): of itself; in a namespace, where a limit is set before
    # the program begins, it may lower one.
    zeros = [_zero(offset) for offset in ((0, 16, 20) if scope == "memory" else (0,))]
    rules += _rule(
        calls.checked["prlimit64"], [*chain.from_iterable(zeros), _step(_RETURN, _ALLOW)]
    )
    # Its flags lie in memory, where a filter cannot look; the C library then takes `clone`.
    rules += _rule(calls.checked["clone3"], [_step(_RETURN, _ERRNO | errno.ENOSYS)])
    return b"".join([*rules, _REFUSED])


def _cloning(*, is_thread: bool) -> list[bytes]:
    """A thread of this process, or any process, and neither in other namespaces."""
    flags = [_step(_LOAD, _ARGUMENTS)]
    if not is_thread:
        return [*flags, _step(_ANY_BIT, _NAMESPACES, 1, 0), _step(_RETURN, _ALLOW), _REFUSED]
    return [
        *flags,
        _step(_ANY_BIT, _NAMESPACES, 3, 0),
        _step(_AND, _THREAD),
        _step(_EQUAL, _THREAD, 0, 1),
        _step(_RETURN, _ALLOW),
        _REFUSED,
    ]


def _one_of(commands: Sequence[int]) -> list[bytes]:
    """The second argument is one of these."""
    steps = [
        step for each in commands for step in (_step(_EQUAL, each, 0, 1), _step(_RETURN, _ALLOW))
    ]
    return [_step(_LOAD, _ARGUMENTS + 8), *steps, _REFUSED]


def _zero(offset: int) -> list[bytes]:
    """The 32 bits of the arguments at this offset are 0."""
    return [_step(_LOAD, _ARGUMENTS + offset), _step(_EQUAL, 0, 1, 0), _REFUSED]


def _rule(number: int, steps: Sequence[bytes]) -> list[bytes]:
    """Steps for one call; each way through them ends in a return."""
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


_REFUSED = _step(_RETURN, _ERRNO | errno.EPERM)
