"""Confinement: what a process of the sandbox gives up between its fork and its program."""

import ctypes
import fcntl
import math
import os
import re
import resource
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from groupwise_sandbox import system_calls

CHANNEL = 3
"""The descriptor of messages to and from the run; 0, 1 and 2 are as usual."""
NOBODY = 65534
THREADS = 256
"""The most of a program."""
_NEW_USERS = 0x10000000
_COUNTED_BY_NAMESPACE = (5, 14)  # of Linux
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

_CHANGED_SIGNALS = list[int]()
"""Those whose handling is not the default one in the server."""


def prepare() -> None:
    """Compute, before any fork, what is the same for every process."""
    system_calls.prepare()
    _unshare(), _counts_by_namespace()
    standing = (each for each in signal.valid_signals() if signal.getsignal(each) != signal.SIG_DFL)
    _CHANGED_SIGNALS[:] = standing


def take(channel: int, output: int, errors: int, stdin: str) -> None:
    """The descriptors in their places, and none besides."""
    own = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _write_all(own, stdin.encode("utf-8", "surrogatepass"))
    fcntl.fcntl(own, fcntl.F_ADD_SEALS, _SEALS)
    os.lseek(own, 0, os.SEEK_SET)
    # By way of higher numbers, since one of them may lie in another one's place.
    above = [fcntl.fcntl(each, fcntl.F_DUPFD, 64) for each in (own, output, errors, channel)]
    for place, source in enumerate(above):
        os.dup2(source, place)
    # All others, however high: among them is the server's own line to the run.
    os.closerange(CHANNEL + 1, _most_descriptors())


def _most_descriptors() -> int:
    """No descriptor of this process has this number, or a higher one."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 30 if most == resource.RLIM_INFINITY else most


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def reset_signals() -> None:
    """Handle signals as a new process does."""
    for number in _CHANGED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)


def limit(seconds: float, memory: int, space: int = 0, descriptors: int = 16) -> None:
    """Seconds of processor time, bytes of memory beside the present ones, and what else grows.

    space: bytes of a file.
    """
    present = _pages() * resource.getpagesize()
    whole = math.ceil(seconds) + 1
    limits = {
        resource.RLIMIT_AS: (present + memory, present + memory),
        resource.RLIMIT_CPU: (whole, whole + 1),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_FSIZE: (space, space),
        resource.RLIMIT_NOFILE: (descriptors, descriptors),
        resource.RLIMIT_MEMLOCK: (0, 0),
    }
    for name, pair in limits.items():
        resource.setrlimit(name, pair)
    # A timer of the kernel, finer than the limit in seconds; blocking its signal leaves that limit.
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _pages() -> int:
    """Of this process's memory. By the calls of the system alone, since every page that Python's
    own files touch after a fork is copied."""
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(statm, 64).split()[0])
    finally:
        os.close(statm)


def give_up_rights() -> None:
    """Become nobody, if this is root; where there is nobody else, the list of calls holds it."""
    if os.getuid() == 0:
        with suppress(OSError):
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)


def limit_threads() -> None:
    """Let the kernel refuse more threads. It counts those of a user, which is this one alone in a
    namespace of its own; without one, those that are there already are allowed besides."""
    is_alone = _counts_by_namespace() and _unshare()(_NEW_USERS) == 0
    most = THREADS if is_alone else 4 * THREADS + _present()
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


@cache
def _unshare() -> Any:
    return ctypes.CDLL(None).unshare


@cache
def _counts_by_namespace() -> bool:
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    return release >= _COUNTED_BY_NAMESPACE


def _present() -> int:
    """The threads that this process's user has now."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended
            status = path.read_text(encoding="utf-8", errors="replace")
            user, threads = re.findall(r"^(?:Uid|Threads):\s*(\d+)", status, re.MULTILINE)
            count += int(threads) if int(user) == os.getuid() else 0
    return count


def end_with(server: int) -> None:
    """Let the kernel end this process when the server ends; new rights would undo it."""
    system_calls.end_with_parent()
    if os.getppid() != server:
        os._exit(1)
