"""The lists of system calls, interpreted for both processors as the kernel does."""

import errno
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from groupwise_sandbox.call_numbers import MACHINES, Calls
from groupwise_sandbox.system_calls import Scope, program

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
SCOPES: tuple[Scope, ...] = ("memory", "folder", "files", "processes", "shell")
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
ARGUMENTS: Mapping[str, tuple[int, ...]] = {
    "clone": (0x10F00,),
    "fcntl": (0, 1),
    "ioctl": (0, 0x5401),
    "mmap": (0, 4096, 3, 0x22),
}
"""With which a call of `checked`, and of memory, is allowed; by default zeros."""


def answer(steps: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel does with a call, by the instructions of classic BPF."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, architecture, 0, *(each & (1 << 64) - 1 for each in given))
    code = [*struct.iter_unpack("<HBBI", steps)]
    position = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[position]
        position += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                position += if_true if accumulator == value else if_false
            case 0x35:
                position += if_true if accumulator >= value else if_false
            case 0x45:
                position += if_true if accumulator & value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(operation)


def allowed(calls: Calls, scope: Scope) -> Mapping[str, int]:
    more: Mapping[Scope, Iterator[Mapping[str, int]]] = {
        "memory": iter(()),
        "folder": iter((calls.paths,)),
        "files": iter((calls.paths, calls.files)),
        "processes": iter((calls.paths, calls.files, calls.processes)),
        "shell": iter((calls.paths, calls.files, calls.processes, calls.shell)),
    }
    names = dict(calls.simple)
    for each in more[scope]:
        names |= each
    return names


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_listed_is_allowed_and_nothing_else(machine: str, scope: Scope) -> None:
    calls = MACHINES[machine]
    steps, listed = program(scope, machine), allowed(calls, scope)
    for name, number in listed.items():
        assert answer(steps, calls.architecture, number, *ARGUMENTS.get(name, ())) == ALLOW, name
    ruled = {*calls.checked.values(), *calls.attributes.values()}
    if scope == "folder":
        ruled |= {calls.files[n] for n in calls.files if "chmod" in n or n == "utimensat"}
    for number in {*range(-1, 600), 0x40000002, 0x40000000 | 59} - {*listed.values()} - ruled:
        assert answer(steps, calls.architecture, number) == REFUSE, number
    other = {each.architecture for each in MACHINES.values()} - {calls.architecture}
    for architecture in {*other, 0x40000003, 0}:  # 0x40000003: 32 bits of x86
        for number in listed.values():
            assert answer(steps, architecture, number) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide(machine: str) -> None:
    calls = MACHINES[machine]

    def gets(scope: Scope, name: str, *arguments: int) -> int:
        number = {**calls.simple, **calls.checked, **calls.files, **calls.attributes}[name]
        return answer(program(scope, machine), calls.architecture, number, *arguments)

    for scope in SCOPES:
        assert gets(scope, "clone", 0x10F00) == ALLOW
        assert gets(scope, "clone", 17) == (ALLOW if scope in ("processes", "shell") else REFUSE)
        for namespace in (0x10000000, 0x20000, 0x20000000, 0x40000000):
            assert gets(scope, "clone", namespace | 0x10F00) == REFUSE
        for owner in (8, 10, 15):  # F_SETOWN, F_SETSIG, F_SETOWN_EX
            assert gets(scope, "fcntl", 0, owner) == REFUSE
        assert gets(scope, "fcntl", 0, 6) == (ALLOW if scope in ("folder", "shell") else REFUSE)
        assert gets(scope, "ioctl", 0, 0x5412) == REFUSE  # TIOCSTI
        assert gets(scope, "prlimit64", 1) == REFUSE
        is_held = scope in ("memory", "folder")
        for new in (1, 1 << 32):
            assert gets(scope, "prlimit64", 0, 1, new) == (REFUSE if is_held else ALLOW)
        assert gets(scope, "clone3") == 0x00050000 | errno.ENOSYS
    assert gets("folder", "mmap", 0, 4096, 3, 2) == REFUSE
    assert gets("folder", "utimensat") == gets("folder", "fchmodat") == 0x00050000
    for name in calls.attributes:
        none = 0x00050000 | errno.ENOTSUP
        assert gets("folder", name) == gets("shell", name) == none
        assert gets("memory", name) == gets("processes", name) == REFUSE
    assert gets("shell", "socketpair", 1) == ALLOW
    for family in (0, 2, 10, 16):
        assert gets("shell", "socketpair", family) == REFUSE
    assert gets("processes", "socketpair", 1) == REFUSE


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_the_kernels(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip("there are no headers of the kernel")
    text = header.read_text(encoding="utf-8")
    numbers = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text))
    numbers.setdefault("newfstatat", numbers.get("fstatat", ""))
    calls = MACHINES[machine]
    groups = (
        calls.simple,
        calls.paths,
        calls.files,
        calls.processes,
        calls.shell,
        calls.attributes,
    )
    groups += (calls.checked,)
    for name, number in (pair for group in groups for pair in group.items()):
        # Headers may be older than a call.
        assert numbers.get(name) == str(number) or (name not in numbers and number >= 439), name
