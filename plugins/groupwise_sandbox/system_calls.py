"""System calls: those that a program may make; the kernel refuses all others (seccomp).

The list has no call that opens a path, starts or signals a process, or makes a socket, so a program
can reach only what it holds: its own memory, and the descriptors that it was given. What is
refused returns EPERM, which Python raises as PermissionError.
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
from typing import Any

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's struct seccomp_data
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 1, 38, 22, 2

_THREAD = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000  # CLONE_VM, FS, FILES, SIGHAND, THREAD
_NAMESPACES = 0x7E020000  # every CLONE_NEW flag
_FCNTL = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: no F_SETOWN

_X86_64 = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10,
    "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "readv": 19, "writev": 20, "sched_yield": 24, "mremap": 25, "madvise": 28,
    "dup": 32, "dup2": 33, "nanosleep": 35, "getitimer": 36, "getpid": 39, "exit": 60, "uname": 63,
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "times": 100, "getuid": 102,
    "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
    "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "set_tid_address": 218,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "set_robust_list": 273, "dup3": 292, "getrandom": 318, "membarrier": 324, "rseq": 334,
}  # fmt: skip
_AARCH64 = {
    "dup": 23, "dup3": 24, "close": 57, "lseek": 62, "read": 63, "write": 64, "readv": 65,
    "writev": 66, "pread64": 67, "fstat": 80, "exit": 93, "exit_group": 94, "set_tid_address": 96,
    "futex": 98, "set_robust_list": 99, "nanosleep": 101, "getitimer": 102, "clock_gettime": 113,
    "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124,
    "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139,
    "times": 153, "uname": 160, "getrlimit": 163, "getrusage": 165, "gettimeofday": 169,
    "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177,
    "gettid": 178, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226,
    "madvise": 233, "getrandom": 278, "membarrier": 283, "rseq": 293,
}  # fmt: skip
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64, {"clone": 56, "fcntl": 72, "prlimit64": 302, "clone3": 435}),
    "aarch64": (0xC00000B7, _AARCH64, {"clone": 220, "fcntl": 25, "prlimit64": 261, "clone3": 435}),
}


def is_supported() -> bool:
    """Whether this machine's processor and system are ones that the list is written for."""
    return sys.platform == "linux" and platform.machine() in _MACHINES


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
def program() -> bytes:
    """The list as the kernel's filter of system calls."""
    architecture, simple, checked = _MACHINES[platform.machine()]
    refused = _ERRNO | errno.EPERM
    rules = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, 0x40000000, 0, 1),  # the x32 numbers of the same calls
        _step(_RETURN, refused),
    ]
    for number in simple.values():
        rules += _rule(number, [_step(_RETURN, _ALLOW)])
    rules += _rule(  # a thread of this process, and nothing else
        checked["clone"],
        [
            _step(_LOAD, _ARGUMENTS),
            _step(_ANY_BIT, _NAMESPACES, 3, 0),
            _step(_AND, _THREAD),
            _step(_EQUAL, _THREAD, 0, 1),
            _step(_RETURN, _ALLOW),
            _step(_RETURN, refused),
        ],
    )
    commands = [
        step for each in _FCNTL for step in (_step(_EQUAL, each, 0, 1), _step(_RETURN, _ALLOW))
    ]
    rules += _rule(
        checked["fcntl"], [_step(_LOAD, _ARGUMENTS + 8), *commands, _step(_RETURN, refused)]
    )
    zeros = [  # prlimit64(pid=0, resource, new=NULL, old): reads a limit of its own
        step
        for offset in (0, 16, 20)
        for step in (
            _step(_LOAD, _ARGUMENTS + offset),
            _step(_EQUAL, 0, 1, 0),
            _step(_RETURN, refused),
        )
    ]
    rules += _rule(checked["prlimit64"], [*zeros, _step(_RETURN, _ALLOW)])
    # Its flags lie in memory, where a filter cannot look; the C library then takes `clone`.
    rules += _rule(checked["clone3"], [_step(_RETURN, _ERRNO | errno.ENOSYS)])
    return b"".join([*rules, _step(_RETURN, refused)])


def _rule(number: int, steps: Sequence[bytes]) -> list[bytes]:
    """Steps for one call; each way through them ends in a return."""
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
