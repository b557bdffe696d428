"""Running: one program on one of its cases."""

from collections.abc import Sequence

from groupwise_code.answer import Answer
from groupwise_code.comparing import same_output, same_value
from groupwise_code.problem import Calling, Case, Printing
from groupwise_sandbox.programs import Program, Programs
from groupwise_sandbox.sandbox import Sandbox

ACCEPTED = ("1", "1.0", "true")
"""What a checker prints for a right output."""
LEETCODE = (
    "from typing import *\n"
    "import collections, functools, heapq, itertools, math, random, re, string\n"
    "from bisect import bisect, bisect_left, bisect_right, insort\n"
    "from collections import Counter, OrderedDict, defaultdict, deque\n"
    "from functools import cache, cmp_to_key, lru_cache, reduce\n"
    "from heapq import heapify, heappop, heappush, heappushpop, nlargest, nsmallest\n"
    "from itertools import accumulate, chain, combinations, count, permutations, product\n"
    "from math import ceil, comb, floor, gcd, inf, sqrt\n"
)
"""What a program that is called may use without an import: the given beginnings of such problems
are written for LeetCode, where these names are there."""


class Runner:
    """Runs programs in a sandbox; its methods may be called in any thread."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self._programs = sandbox, Programs(sandbox)

    def refusal(self, language: str) -> str | None:
        """Why programs of a language cannot be run here, or None. Raises SandboxError."""
        return None if language == "python" else self._programs.refusal(language)

    def program(self, answer: Answer) -> str | Program:
        """What can be run of an answer, Python as it is. Raises SandboxError and CompileError."""
        if answer.language == "python":
            return answer.code
        return self._programs.compiled(answer.language, answer.code)

    def failures(self, program: str | Program, case: Case) -> Sequence[str | None]:
        """Of each test of a case, why a program fails it; None where it passes.

        Raises SandboxError, and ValueError for tests that cannot be run on any program.
        """
        if isinstance(case, Printing):
            return [self._misprint(program, case)]
        assert isinstance(program, str)  # other languages have no tests that call a function
        if isinstance(case, Calling):
            return [_misvalue(self._sandbox, program, case)]
        return self._sandbox.test(program, case.suite).reasons

    def _misprint(self, program: str | Program, case: Printing) -> str | None:
        if isinstance(program, str):
            finished = self._sandbox.run(program, case.stdin)
        else:
            finished = self._programs.run(program, case.stdin)
        if finished.ended != "exit" or finished.status != 0:
            return finished.why
        printed = finished.stdout.decode("utf-8", "replace")
        if case.checker is not None:
            return _complaint(self._sandbox, case.checker, case, printed)
        is_right = same_output(printed, case.expected)
        return None if is_right else f"printed {printed!r:.60}, expected {case.expected!r:.60}"


def _misvalue(sandbox: Sandbox, program: str, case: Calling) -> str | None:
    called = sandbox.call(program, case.name, case.arguments, opening=LEETCODE)
    if called.error is not None or same_value(called.value, case.expected):
        return called.error
    return f"returned {called.value!r:.60}, expected {case.expected!r:.60}"


def _complaint(sandbox: Sandbox, checker: str, case: Printing, printed: str) -> str | None:
    """Why a row's checker, a program of its own, does not accept an output."""
    files = {"input.txt": case.stdin, "expected.txt": case.expected, "output.txt": printed}
    finished = sandbox.run(checker, arguments=[*files], files=files)
    verdict = finished.stdout.decode("utf-8", "replace").strip()
    if finished.ended == "exit" and finished.status == 0 and verdict.lower() in ACCEPTED:
        return None
    return f"printed {printed!r:.60}; the checker: {verdict[:60] or finished.why}"
