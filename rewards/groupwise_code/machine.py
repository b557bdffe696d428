"""Machine: where programs are run: this one, or a server."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from groupwise_code.answer import Answer
from groupwise_code.problem import Calling, Case, Printing, Testing
from groupwise_sandbox.process import Finished
from groupwise_sandbox.programs import Program, Programs
from groupwise_sandbox.sandbox import Called, Sandbox, Tested

Left: TypeAlias = Callable[[], float]
"""The seconds that the reward's call has left."""
SHARE = 0.9
"""The part of them in which programs and tests are begun."""
LAST = 0.95
"""The part of them after which those that still run are ended, since a call must end in time."""
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
SERVED = {"python": "python", "cpp": "cpp", "javascript": "nodejs"}
"""A server's names of our languages; it runs no others."""


class Machine(Protocol):
    """Runs programs; its methods may be called in any thread, and raise SandboxError where the
    machine fails, whatever the program is."""

    @property
    def parallel(self) -> int:
        """Programs at the same time."""

    def refusal(self, language: str) -> str | None:
        """Why programs of a language cannot be run, or None."""

    def refused(self, case: Case) -> str | None:
        """Why a case cannot be tried, or None."""

    def program(self, answer: Answer) -> Any:
        """What can be run of an answer. Raises CompileError."""

    def run(self, program: Any, stdin: str, left: Left) -> Finished:
        """Run a program with this standard input."""

    def call(self, program: Any, case: Calling, left: Left) -> Called:
        """Call a function of a program, without what it should return."""

    def test(self, program: Any, case: Testing) -> Tested:
        """Run tests that are code. Raises ValueError for those that fit no program."""

    def checked(self, case: Printing, printed: str) -> Finished:
        """Run a row's checker on what a program printed."""

    def ending(self, seconds: float) -> AbstractContextManager[None]:
        """End what runs in the block after so many seconds; it is then the machine's fault."""

    def close(self) -> None:
        """End what runs."""


class Here:
    """This machine, in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self._programs = sandbox, Programs(sandbox)
        self.parallel = sandbox.parallel

    def refusal(self, language: str) -> str | None:
        reason = None if language == "python" else self._programs.refusal(language)
        is_served = language in SERVED
        return (
            f"{reason}; or name a server that runs it: `server`" if reason and is_served else reason
        )

    def refused(self, case: Case) -> str | None:
        if not isinstance(case, Testing):
            return None
        if missing := sorted({*case.modules} - self._sandbox.modules):
            return f"the tests import {missing[0]}; if it is installed, set modules: [{missing[0]}]"
        reason = self._sandbox.folder_refusal if case.suite.space else None
        return reason and f"the tests use files: {reason}"

    def program(self, answer: Answer) -> str | Program:
        if answer.language == "python":
            return answer.code
        return self._programs.compiled(answer.language, answer.code)

    def run(self, program: str | Program, stdin: str, left: Left) -> Finished:
        if isinstance(program, str):
            return self._sandbox.run(program, stdin)
        return self._programs.run(program, stdin)

    def call(self, program: str, case: Calling, left: Left) -> Called:
        return self._sandbox.call(program, case.name, case.arguments, opening=LEETCODE)

    def test(self, program: str, case: Testing) -> Tested:
        return self._sandbox.test(program, case.suite)

    def checked(self, case: Printing, printed: str) -> Finished:
        files = {"input.txt": case.stdin, "expected.txt": case.expected, "output.txt": printed}
        return self._sandbox.run(str(case.checker), arguments=[*files], files=files)

    def ending(self, seconds: float) -> AbstractContextManager[None]:
        return self._sandbox.ending(seconds)

    def close(self) -> None:
        self._sandbox.close()
