"""`code_tests`: the same verdict alone, among others, and on a busy machine, or none."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from groupwise.rewards import SampleErrors
from groupwise_code.reward import CodeTests

LIMIT = 0.5
"""Seconds of processor time."""
TAKES = "import time\nuntil = {seconds}\nwhile time.process_time() < until: pass\n"
ENDLESS = "while True: pass\n"
PRINTS = "print(sum(map(int, input().split())))\n"
SLOWER = TAKES.format(seconds=0.4 * LIMIT) + PRINTS
PROGRAMS = {
    PRINTS: 1.0,
    SLOWER: 1.0,
    "print(4)\n": 0.0,
    TAKES.format(seconds=2 * LIMIT) + PRINTS: 0.0,
    ENDLESS: 0.0,
    "1 / 0\n": 0.0,
    "import time\ntime.sleep(60)\n": 0.0,
}
"""Below half of the limit, or above twice of it, and what they get."""
FAILED = "failed"
BUSY = "failed in its sandbox: the machine was too busy to give a program its processor time"


@pytest.fixture
def busy() -> Iterator[None]:
    """Six programs besides."""
    others = [subprocess.Popen([sys.executable, "-c", ENDLESS]) for _ in range(6)]
    yield
    for each in others:
        each.kill()
        each.wait()


def verdicts(programs: list[str], parallel: int | None = None) -> list[float | str | None]:
    reward, count = CodeTests(CodeTests.Config(timeout=LIMIT, parallel=parallel)), len(programs)
    cases = [[{"input": "1 2\n", "output": "3\n"}]] * count
    try:
        return [*reward([""] * count, programs, test_cases=cases)]
    except SampleErrors as error:
        if {*error.errors.values()} != {BUSY}:
            raise
        return [FAILED if n in error.errors else each for n, each in enumerate(error.values)]
    finally:
        reward.close()


def are_right(programs: list[str], found: list[float | str | None]) -> bool:
    """Whether each has its own verdict, or none where this machine is too busy to give one."""
    pairs = zip(programs, found, strict=True)
    return all(verdict in (PROGRAMS[each], FAILED) for each, verdict in pairs)


@pytest.mark.slow
def test_each_alone() -> None:
    assert are_right([*PROGRAMS], [verdicts([each])[0] for each in PROGRAMS])


@pytest.mark.slow
def test_among_others() -> None:
    programs = [*PROGRAMS] * 4
    assert are_right(programs, verdicts(programs))


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
def test_on_a_busy_machine() -> None:
    found = verdicts([*PROGRAMS])
    assert are_right([*PROGRAMS], found)
    assert found[-1] == 0.0  # it waited for no processor


@pytest.mark.slow
def test_a_program_that_the_machine_holds_up_is_not_wrong() -> None:
    """Sixteen share one processor, so none has its time before the wall time is over."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        found = verdicts([SLOWER, *[ENDLESS] * 15], 16)
    finally:
        os.sched_setaffinity(0, processors)
    assert found[0] in (1.0, FAILED)
