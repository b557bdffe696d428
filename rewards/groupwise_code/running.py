"""Running: one program on one of its cases."""

from collections.abc import Sequence
from typing import Any

from groupwise_code.comparing import same_output, same_value
from groupwise_code.machine import Left, Machine
from groupwise_code.problem import Calling, Case, Printing

ACCEPTED = ("1", "1.0", "true")
"""What a checker prints for a right output."""


def failures(machine: Machine, program: Any, case: Case, left: Left) -> Sequence[str | None]:
    """Of each test of a case, why a program fails it; None where it passes.

    Raises SandboxError, and ValueError for tests that cannot be run on any program.
    """
    if isinstance(case, Printing):
        return [_misprint(machine, program, case, left)]
    if isinstance(case, Calling):
        return [_misvalue(machine, program, case, left)]
    return machine.test(program, case).reasons


def _misprint(machine: Machine, program: Any, case: Printing, left: Left) -> str | None:
    finished = machine.run(program, case.stdin, left)
    if finished.ended != "exit" or finished.status != 0:
        return finished.why
    printed = finished.stdout.decode("utf-8", "replace")
    if case.checker is not None:
        return _complaint(machine, case, printed)
    is_right = same_output(printed, case.expected)
    return None if is_right else f"printed {printed!r:.60}, expected {case.expected!r:.60}"


def _misvalue(machine: Machine, program: Any, case: Calling, left: Left) -> str | None:
    called = machine.call(program, case, left)
    if called.error is not None or same_value(called.value, case.expected):
        return called.error
    return f"returned {_shown(called.value)}, expected {_shown(case.expected)}"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python writes no integer of thousands of digits
        return "an integer of thousands of digits"


def _complaint(machine: Machine, case: Printing, printed: str) -> str | None:
    """Why a row's checker, a program of its own, does not accept an output."""
    finished = machine.checked(case, printed)
    verdict = finished.stdout.decode("utf-8", "replace").strip()
    if finished.ended == "exit" and finished.status == 0 and verdict.lower() in ACCEPTED:
        return None
    return f"printed {printed!r:.60}; the checker: {verdict[:60] or finished.why}"
