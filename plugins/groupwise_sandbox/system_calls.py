"""System calls: those that a program may make; the kernel refuses all others (seccomp).

The list for Python has no call that opens a path, starts or signals a process, or makes a socket,
so a program can reach only what it holds: its own memory, and the descriptors that it was given.
With a folder of its own (`groupwise_sandbox.view`) it has paths, and in namespaces it may execute
what it sees, too; only commands have processes, and none has sockets.
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

from groupwise_sandbox.call_numbers import MACHINES, Calls

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's struct seccomp_data
_DEATH_SIGNAL, _DUMPABLE, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 1, 4, 38, 22, 2

_THREAD = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000  # CLONE_VM, FS, FILES, SIGHAND, THREAD
_NAMESPACES = 0x7E020000  # every CLONE_NEW flag
_FCNTL = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: no F_SETOWN
_F_SETFL = 4
_LOCKS = (5, 6, 7)  # F_GETLK, F_SETLK, F_SETLKW
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_ANONYMOUS = 0x20  # MAP_ANONYMOUS
_UNIX = 1  # AF_UNIX
_FORKING = ("processes", "shell")
_PRETENDED = ("chmod", "fchmod", "fchmodat", "utimensat")
"""What changes the mode and the times of a file: with a folder alone it succeeds and does nothing,
since it could reach files outside (Landlock holds back neither), and copying a file needs it."""

Scope: TypeAlias = Literal["memory", "folder", "files", "processes", "shell"]
"""What a process may use: only what it holds, or a folder, too, or a file system of its own, in
which it executes programs, or that and processes, or these and whatever else a shell's commands do.

The latter three are for namespaces, where there is nothing of the machine to be found.
"""


def is_supported() -> bool:
    """Whether this machine's processor and system are ones that the list is written for."""
    return sys.platform == "linux" and platform.machine() in MACHINES


def prepare() -> None:
    """Make, before any fork, what `restrict` and `end_with_parent` need."""
    _prctl(), _described("memory"), _described("folder")


def restrict(scope: Scope = "memory") -> None:
    """Hold this process to the list, for ever. Raises OSError if the kernel refuses."""
    forbid_new_privileges()
    _set(_SET_SECCOMP, _FILTER, ctypes.addressof(_described(scope)[0]))


def forbid_new_privileges() -> None:
    """Let no program that this process executes have more rights, which filters need."""
    _set(_NO_NEW_PRIVILEGES, 1)


def own_its_entries() -> None:
    """Let this process write its entries in /proc, also after it has become another user."""
    _set(_DUMPABLE, 1)


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
def _described(scope: Scope) -> tuple[Any, Any]:
    """The kernel's struct sock_fprog of the list, and what it points to."""
    steps = program(scope)
    filters = ctypes.create_string_buffer(steps, len(steps))
    length_and_address = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(filters))
    return ctypes.create_string_buffer(length_and_address, len(length_and_address)), filters


@cache
def program(scope: Scope = "memory", machine: str = platform.machine()) -> bytes:
    """The list as the kernel's filter of system calls.

    machine: a processor of `MACHINES`.
    """
    calls = MACHINES[machine]
    allowed = _allowed(calls, scope)
    rules = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, calls.architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, 0x40000000, 0, 1),  # the x32 numbers of the same calls
        _REFUSED,
    ]
    if scope == "folder":
        # A file that is mapped and removed is seen by nobody who measures the folder.
        rules += _rule(allowed.pop("mmap"), _any_bit(_ANONYMOUS, argument=3))
        for name in {*_PRETENDED} & {*calls.files}:
            rules += _rule(calls.files[name], [_step(_RETURN, _ERRNO)])
    if scope in ("folder", "shell"):
        for number in calls.attributes.values():  # so that a copy has none
            rules += _rule(number, [_step(_RETURN, _ERRNO | errno.ENOTSUP)])
    if scope == "shell":  # within the process, as event loops use it
        rules += _rule(calls.checked["socketpair"], _one_of([_UNIX], argument=0))
    for number in allowed.values():
        rules += _rule(number, [_step(_RETURN, _ALLOW)])
    rules += _rule(calls.checked["clone"], _cloning(is_thread=scope not in _FORKING))
    commands = {
        "memory": _FCNTL,
        "folder": (*_FCNTL, *_LOCKS),
        "shell": (*_FCNTL, *_LOCKS, _F_SETFL),
    }.get(scope, (*_FCNTL, _F_SETFL))
    rules += _rule(calls.checked["fcntl"], _one_of(commands))
    if scope != "memory":
        rules += _rule(calls.checked["ioctl"], _one_of(_IOCTL))
    # prlimit64(pid=0, resource, new, old): of itself; in a namespace, where a limit is set before
    # the program begins, it may lower one.
    is_held = scope in ("memory", "folder")
    zeros = [_zero(offset) for offset in ((0, 16, 20) if is_held else (0,))]
    rules += _rule(
        calls.checked["prlimit64"], [*chain.from_iterable(zeros), _step(_RETURN, _ALLOW)]
    )
    # Its flags lie in memory, where a filter cannot look; the C library then takes `clone`.
    rules += _rule(calls.checked["clone3"], [_step(_RETURN, _ERRNO | errno.ENOSYS)])
    return b"".join([*rules, _REFUSED])


def _allowed(calls: Calls, scope: Scope) -> dict[str, int]:
    """Calls that a scope allows whatever their arguments are."""
    groups = [calls.simple, calls.paths, calls.files, calls.processes, calls.shell]
    count = {"memory": 1, "folder": 2, "files": 3, "processes": 4, "shell": 5}[scope]
    return dict(chain.from_iterable(each.items() for each in groups[:count]))


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


def _one_of(commands: Sequence[int], argument: int = 1) -> list[bytes]:
    """An argument is one of these; by default the second."""
    steps = [
        step for each in commands for step in (_step(_EQUAL, each, 0, 1), _step(_RETURN, _ALLOW))
    ]
    return [_step(_LOAD, _ARGUMENTS + 8 * argument), *steps, _REFUSED]


def _any_bit(bits: int, *, argument: int) -> list[bytes]:
    """One of these bits of an argument's lower half is set."""
    load = _step(_LOAD, _ARGUMENTS + 8 * argument)
    return [load, _step(_ANY_BIT, bits, 0, 1), _step(_RETURN, _ALLOW), _REFUSED]


def _zero(offset: int) -> list[bytes]:
    """The 32 bits of the arguments at this offset are 0."""
    return [_step(_LOAD, _ARGUMENTS + offset), _step(_EQUAL, 0, 1, 0), _REFUSED]


def _rule(number: int, steps: Sequence[bytes]) -> list[bytes]:
    """Steps for one call; each way through them ends in a return."""
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


_REFUSED = _step(_RETURN, _ERRNO | errno.EPERM)
