"""Programs of a tiny language: the questions of `examples/code_world.yaml`, and their interpreter.

A program has two variables, a and b, and counts modulo 10: `a=4 b=7 swap a+=1 print a` prints 8.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

STATEMENTS: Mapping[str, Callable[[int, int], tuple[int, int]]] = {
    "a+=1": lambda a, b: (a + 1, b),
    "a-=1": lambda a, b: (a - 1, b),
    "b+=1": lambda a, b: (a, b + 1),
    "b-=1": lambda a, b: (a, b - 1),
    "a=b": lambda _, b: (b, b),
    "b=a": lambda a, _: (a, a),
    "swap": lambda a, b: (b, a),
}
"""What each statement makes of the values of a and b."""
LENGTH = 4
"""Statements of a program."""
PROGRAM = re.compile(r"a=(\d) b=(\d)((?: \S+)*) print ([ab])")


def run(program: str) -> str:
    """What the interpreter says of a program: each statement with the values of a and b after it,
    and in the end what is printed, as in `swap:74 a+=1:84 print a:8`.

    Raises ValueError for what is not a program.
    """
    match = PROGRAM.fullmatch(program)
    if match is None:
        raise ValueError(f"a program is like a=4 b=7 swap a+=1 print a, found {program!r}")
    a, b, steps = int(match[1]), int(match[2]), []
    for statement in match[3].split():
        if statement not in STATEMENTS:
            raise ValueError(f"{statement!r} is not one of {', '.join(STATEMENTS)}")
        a, b = (value % 10 for value in STATEMENTS[statement](a, b))
        steps.append(f"{statement}:{a}{b}")
    return " ".join([*steps, f"print {match[4]}:{a if match[4] == 'a' else b}"])


class Programs(Sequence[Mapping[str, Any]]):
    """Rows with a program and what it prints; always the same ones. size: how many."""

    def __init__(self, size: int = 20_000) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any, /) -> Any:
        program = drawn(random.Random(range(self.size)[index]))
        return {"prompt": program, "program": program, "answer": run(program)[-1]}


def drawn(chance: random.Random) -> str:
    """A program with random values and statements."""
    a, b = chance.randint(0, 9), chance.randint(0, 9)
    statements = chance.choices([*STATEMENTS], k=LENGTH)
    return " ".join([f"a={a} b={b}", *statements, f"print {chance.choice('ab')}"])


class World:
    """An environment for TRL's `environment_factory`: the program of a row can be run."""

    def __init__(self) -> None:
        self.program = ""

    def reset(self, program: str, **row: object) -> None:
        """Begin with the program of a row; called with all its columns."""
        self.program = program

    def run(self) -> str:
        """Run the program.

        Returns:
            Each statement with the values of a and b after it, and what is printed.
        """
        return run(self.program)
