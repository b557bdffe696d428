"""Small repositories with a fault, for `examples/repair.yaml` and `examples/smollm_repair.yaml`.

Each has three modules of three functions of a line, `def add_4(x): return x + 4`, and one of the
functions does not do what its name says.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MODULES = ("bank", "farm", "fleet", "forge", "mill", "mine", "port", "shop")
OPERATORS = {"add": "+", "less": "-", "times": "*"}
NUMBERS = range(2, 10)
TRIED = 5
"""What the model calls a function with, to see whether it is right."""
TESTED = (1, 8)
"""What the hidden tests call it with, beside that."""


@dataclass(frozen=True)
class Function:
    """name: of its operation, such as "add"; operator, number: what its body has."""

    operation: str
    number: int
    operator: str
    operand: int

    @classmethod
    def right(cls, operation: str, number: int) -> "Function":
        return cls(operation, number, OPERATORS[operation], number)

    @property
    def name(self) -> str:
        return f"{self.operation}_{self.number}"

    @property
    def body(self) -> str:
        return f"x {self.operator} {self.operand}"

    @property
    def line(self) -> str:
        return f"def {self.name}(x): return {self.body}"

    def __call__(self, x: int) -> int:
        return {"+": x + self.operand, "-": x - self.operand, "*": x * self.operand}[self.operator]


@dataclass(frozen=True)
class Repository:
    """modules: functions by the module's name; module: the one with the fault; place: which of its
    functions has it."""

    modules: Mapping[str, Sequence[Function]]
    module: str
    place: int

    @classmethod
    def drawn(cls, chance: random.Random) -> "Repository":
        names = chance.sample(MODULES, 3)
        every = [(operation, number) for operation in OPERATORS for number in NUMBERS]
        functions = [Function.right(*each) for each in chance.sample(every, 9)]
        modules = {name: functions[3 * n : 3 * n + 3] for n, name in enumerate(sorted(names))}
        module, place = chance.choice(names), chance.randrange(3)
        right = modules[module][place]
        others = {function.body for function in modules[module]}
        faults = [each for each in _faults(right) if each.body not in others]
        modules[module][place] = chance.choice(faults)
        return cls(modules, module, place)

    @property
    def wrong(self) -> Function:
        return self.modules[self.module][self.place]

    @cached_property
    def right(self) -> Function:
        return Function.right(self.wrong.operation, self.wrong.number)

    @property
    def prompt(self) -> str:
        return f"{self.wrong.name} is wrong: {', '.join(self.modules)}"

    @property
    def files(self) -> Mapping[str, str]:
        return {
            f"{name}.py": "".join(f"{function.line}\n" for function in functions)
            for name, functions in self.modules.items()
        }

    @property
    def tests(self) -> str:
        """What no function of the repository does wrong once it is repaired."""
        imports, tests = [], []
        for module, functions in self.modules.items():
            right = [Function.right(each.operation, each.number) for each in functions]
            imports.append(f"from {module} import {', '.join(each.name for each in right)}\n")
            calls = [f"{each.name}({x}) == {each(x)}" for each in right for x in (*TESTED, TRIED)]
            tests.append(f"\n\ndef test_{module}():\n")
            tests += [f"    assert {call}\n" for call in calls]
        return "".join(imports + tests)


def _faults(right: Function) -> Sequence[Function]:
    """The same function with another operator, or another number."""
    own = (right.operation, right.number)
    operators = [each for each in OPERATORS.values() if each != right.operator]
    operands = [each for each in NUMBERS if each != right.number]
    return [
        *(Function(*own, each, right.operand) for each in operators),
        *(Function(*own, right.operator, each) for each in operands),
    ]


class Repositories(Sequence[Mapping[str, Any]]):
    """Rows with a task, files and hidden tests; always the same ones.

    size: how many.
    """

    def __init__(self, size: int = 4000) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any, /) -> Any:
        return self.row(Repository.drawn(random.Random(range(self.size)[index])))

    def row(self, own: Repository) -> Mapping[str, Any]:
        return {"prompt": own.prompt, "files": own.files, "tests": own.tests}


class Chats(Repositories):
    """The same for a model that can chat and has bash alone. It reads what the function has to
    return, after three that are repaired."""

    def row(self, own: Repository) -> Mapping[str, Any]:
        prompt = [*SHOWN, {"role": "user", "content": _task(own.right, *own.modules)}]
        return {**super().row(own), "prompt": prompt}


def _task(right: Function, *modules: str) -> str:
    return f"{right.name}(x) must return {right.body}, in one of {', '.join(modules)}"


def _shown(module: str, other: str, wrong: Function) -> list[dict[str, str]]:
    """How a function is found and repaired."""
    right, name = Function.right(wrong.operation, wrong.number), wrong.name
    line = f"{name}(x): return"
    return [
        {"role": "user", "content": _task(right, module, other)},
        {"role": "assistant", "content": f"<bash>grep {name} *.py</bash>"},
        {"role": "tool", "content": f"{module}.py:{wrong.line}\n"},
        {
            "role": "assistant",
            "content": f"<bash>sed -i 's/{line} .*/{line} {right.body}/' {module}.py</bash>",
        },
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "done"},
    ]


SHOWN = [
    {"role": "system", "content": "You repair programs by commands in <bash></bash>."},
    *_shown("cave", "tower", Function("add", 4, "-", 4)),
    *_shown("wood", "yard", Function("times", 3, "*", 8)),
    *_shown("barn", "cellar", Function("less", 5, "+", 5)),
]
