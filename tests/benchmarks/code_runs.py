"""Programs a second in the sandbox, cold and warm, beside other ways; and verdicts by format.

    python tests/benchmarks/code_runs.py              # 200 programs in each way
    python tests/benchmarks/code_runs.py --verdicts   # right and wrong programs and cheats

Cold is a process of Python for each program, without `site`, by itself or in bubblewrap (`bwrap` on
the path, left out where it does not work). Warm is `groupwise_sandbox`, whose server forks; its
start is a line of its own. The program prints a sum of what it reads, at once or after the imports
that such programs usually begin with. Processor time is of all processes that take part in a run,
the one that waits for it included; what runs inside bubblewrap is not seen. Memory is what a
process has for itself (USS).
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.code.test_code_tests import CALLED, CHEATS, PRINTED, PRINTS, RIGHT, WRONG, value

from groupwise_code.reward import CodeTests
from groupwise_sandbox.languages import LANGUAGES
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.programs import Programs
from groupwise_sandbox.sandbox import Sandbox, Suite

COLD = (sys.executable, "-I", "-S", "-c")
WRAPPED = ("bwrap", "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", *COLD)
IMPORTS = (
    "import functools, heapq, itertools, math, re, sys\n"
    "from collections import Counter, defaultdict, deque\n"
    "from typing import List, Optional\n"
)
PROGRAMS = {"a program": PRINTS, "a program with imports": IMPORTS + PRINTS}
TESTS = "assert add(1, 2) == 3\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--verdicts", action="store_true")
    options = parser.parse_args()
    if options.verdicts:
        verdicts()
    else:
        speed(options.programs)


def speed(count: int) -> None:
    print("| way | programs a second | ms of one, median | ms of processor |\n|---|---|---|---|")
    for way, prefix, seen in (
        ("Python", COLD, [psutil.Process()]),
        ("bubblewrap", WRAPPED, []),
    ):
        for name, program in PROGRAMS.items():
            if works((*prefix, program)):
                cold = partial(works, (*prefix, program))
                line(f"{way}, cold: {name}", cold, count, 1, seen)
    began = time.monotonic()
    with Sandbox(limits=Limits(seconds=5)) as sandbox:
        sandbox.run("")
        start = time.monotonic() - began
        ways: dict[str, Callable[[], bool]] = {
            **{
                name: lambda program=program: sandbox.run(program, "1 2").stdout == b"3\n"
                for name, program in PROGRAMS.items()
            },
            "a call": lambda: sandbox.call(RIGHT, "add", [1, 2]).value == 3,
            "tests that are code": lambda: (
                sandbox.test(RIGHT, Suite(code=TESTS, stubs=["add"])).passed
            ),
        }
        if sandbox.folder_refusal is None:
            ways["a program with a folder"] = lambda: (
                sandbox.run(PRINTS, "1 2", space=1 << 20).stdout == b"3\n"
            )
        server = psutil.Process(sandbox._connected()._server.pid)
        both = [psutil.Process(), server]
        for name, run in ways.items():
            for threads in sorted({1, sandbox.parallel}):
                line(f"sandbox, warm: {name}, {threads} at once", run, count, threads, both)
        other_languages(sandbox, count, both)
        shells(sandbox, count)
        calls_of_tests(sandbox)
        with ThreadPoolExecutor(1) as pool:
            sleeping = pool.submit(sandbox.run, "import time\ntime.sleep(0.5)")
            time.sleep(0.3)
            (child,) = server.children()
            own = child.memory_full_info().uss >> 20
            sleeping.result()
        held = server.memory_full_info().uss >> 20
    print(f"\nThe server starts in {start:.2f} s and has {held} MiB; a program adds {own} MiB.")


def calls_of_tests(sandbox: Sandbox, count: int = 1000) -> None:
    """Between tests that are code and a program: the milliseconds of one call."""
    program = (
        "class Box:\n    def get(self, x): return x\n"
        "def same(x): return x\ndef apply(f, n): return [f(i) for i in range(n)]\n"
        "def numbers(n): yield from range(n)\n"
    )
    for name, code in {
        "a call": f"for i in range({count}): assert same(i) == i",
        "a method": f"box = Box()\nfor i in range({count}): assert box.get(i) == i",
        "a callback": f"apply(lambda x: x, {count})",
        "a value of a generator": f"assert sum(numbers({count})) == sum(range({count}))",
    }.items():
        suite = Suite(code=code, stubs=["Box", "same", "apply", "numbers"], classes=["Box"])
        began = time.monotonic()
        assert sandbox.test(program, suite).passed
        print(f"tests that are code: {name}: {1000 * (time.monotonic() - began) / count:.2f} ms")


def shells(sandbox: Sandbox, count: int) -> None:
    """A shell, and a command in one: the milliseconds, and the memory of a shell that waits."""
    if sandbox.shell_refusal is not None:
        return
    began = time.monotonic()
    for _ in range(count):
        with sandbox.shell():
            pass
    opening = 1000 * (time.monotonic() - began) / count
    with sandbox.shell() as shell:
        began = time.monotonic()
        for _ in range(count):
            shell.run("true")
        command = 1000 * (time.monotonic() - began) / count
        (holder,) = psutil.Process(sandbox._connected()._server.pid).children()
        held = holder.memory_full_info().uss / 2**20
    print(f"a shell: {opening:.0f} ms and {held:.1f} MiB; a command in it: {command:.0f} ms")


def other_languages(sandbox: Sandbox, count: int, processes: Sequence[psutil.Process]) -> None:
    """In bubblewrap: to compile a program, and to run it."""
    programs = Programs(sandbox)
    for name, language in LANGUAGES.items():
        if programs.refusal(name) is not None:
            continue
        compiles = partial(programs.compiled, name, language.probe)
        if language.compiling:
            some = max(1, count // 20)
            line(
                f"sandbox: to compile {language.title}",
                lambda compiles=compiles: compiles() is not None,
                some,
                1,
                processes,
            )
        runs = partial(programs.run, compiles(), "41")
        line(
            f"sandbox: a program in {language.title}",
            lambda runs=runs: runs().status == 0,
            count,
            1,
            processes,
        )


def works(command: tuple[str, ...]) -> bool:
    try:
        ran = subprocess.run(command, input=b"1 2", capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return ran.stdout == b"3\n"


def line(
    name: str,
    run: Callable[[], bool],
    count: int,
    threads: int,
    processes: Sequence[psutil.Process],
) -> None:
    """processes: those that take processor time, with their children."""

    def timed(_: int) -> float:
        began = time.monotonic()
        assert run()
        return time.monotonic() - began

    with ThreadPoolExecutor(threads) as pool:
        used, began = processor(processes), time.monotonic()
        each = sorted(pool.map(timed, range(count)))
        whole, used = time.monotonic() - began, processor(processes) - used
    own = f"{1000 * used / count:.1f}" if processes else "-"
    print(f"| {name} | {count / whole:.0f} | {1000 * each[count // 2]:.1f} | {own} |", flush=True)


def processor(processes: Sequence[psutil.Process]) -> float:
    """Seconds of these processes, with those of children that have ended."""
    return sum(sum(each.cpu_times()[:4]) for each in processes)


def verdicts() -> None:
    """For each format, what the right and the wrong program get, and how many cheats are paid."""
    reward = CodeTests(CodeTests.Config(timeout=1, memory=128, modules=("pytest",)))
    print("| format | right | wrong | cheats paid |\n|---|---|---|---|")
    try:
        for name, row in CALLED.items():
            paid = sum(value(reward, program, row) != 0.0 for program in CHEATS.values())
            right, wrong = (value(reward, program, row) for program in (RIGHT, WRONG))
            print(
                f"| {name}, calls | {right:g} | {wrong:g} | {paid} of {len(CHEATS)} |", flush=True
            )
        for name, row in PRINTED.items():
            right, wrong = (value(reward, program, row) for program in (PRINTS, "print(4)"))
            paid = sum(value(reward, program, row) != 0.0 for program in PRINTING_CHEATS)
            print(f"| {name}, prints | {right:g} | {wrong:g} | {paid} of {len(PRINTING_CHEATS)} |")
    finally:
        reward.close()


PRINTING_CHEATS = (
    "pass",
    "raise SystemExit(0)",
    "import os\nos._exit(0)",
    "print(3)\nprint(4)",
    "print(True)",
    "print(3.0)",
    "print(open('/proc/self/environ').read())",
    "import os, struct\nm = b'{\"passed\": true}'\nos.write(3, struct.pack('!Q', len(m)) + m)",
    "import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and 'output' in o])",
)


if __name__ == "__main__":
    main()
