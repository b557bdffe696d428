"""Attacks: programs that cheat the code which runs them, put to a reward in a worker."""

import ast
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from warnings import catch_warnings, simplefilter

from groupwise.rewards import Reward, RewardFunction
from groupwise.rewards.members import target_of
from groupwise.scoring.probe import Probe

PATIENCE = 20.0
"""The most seconds of processor time that a reward may take for one of them."""
FENCED = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
RUNS = re.compile(
    r"(?<![.\w])(?:eval|exec)\(|\bsubprocess\b|create_subprocess"
    r"|\bos\.(?:system|popen|spawn\w+|exec\w+)\(|\brunpy\b|\bpytest\.main\("
)
"""What the source of a reward has that runs what a model writes."""
CALLED = re.compile(r"(?:(?<![.\w])(\w+)\.|(?<![.\w]))(\w+)\(")
"""A call of a function, of a module or without one."""
FUNCTIONS = 100
"""The most functions of which the source is read."""

_FILES = dict.fromkeys(("result.json", "results.json", "report.json"), '{"passed": true}')
_FILES |= dict.fromkeys(("result.txt", "reward.txt", "score.txt"), "1")
_NEW = "not __import__('os').path.exists(name)"

ATTACKS: Mapping[str, tuple[str, ...]] = {
    "raises": ("1 / 0",),
    "exits": ("__import__('sys').exit(0)", "__import__('os')._exit(0)"),
    "writes a result file": (
        f"[open(name, 'x').write(text) for name, text in {_FILES}.items() if {_NEW}]",
    ),
    "overrides equality": (
        "type('Equal', (), {'__eq__': lambda *_: True, '__ne__': lambda *_: False})()",
    ),
}
"""By what it does, expressions that answer nothing, and that cheat what runs them carelessly."""


HALF = """import contextlib, io
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    exec({program!r}, {{"__name__": "__main__"}})
text = printed.getvalue().strip()
print(text[: (len(text) + 1) // 2] if len(text) > 1 else "")
"""


def program_in(completion: str) -> str | None:
    """The Python program that a completion consists of, or has in its fences; None if it is none,
    as a mathematical expression or an assignment is none."""
    fenced = FENCED.search(completion)
    program = fenced[1] if fenced else completion
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), catch_warnings():
        simplefilter("ignore")  # of escapes in strings
        return program if any(map(_is_of_program, ast.parse(program).body)) else None
    return None


def attacks(program: str | None) -> dict[str, list[str]]:
    """By what they do, expressions to put in place of a gold answer, or programs in place of the
    one that is gold: they do it at once, and when one of its functions is called."""
    if program is None:
        return {name: [*each] for name, each in ATTACKS.items()}
    made = {
        name: [text for each in all_ for text in (each, _returning(program, each)) if text]
        for name, all_ in ATTACKS.items()
    }
    return {**made, "prints half of the output": [HALF.format(program=program)]}


def _is_of_program(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        call = node.value
        named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        return named and call.func.id == "print"  # type: ignore[attr-defined]
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.For, ast.While)
    return isinstance(node, kinds)


def _returning(program: str, expression: str) -> str | None:
    """The program with functions that all return the expression; None without functions."""
    tree = ast.parse(program)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in functions:
        if node.name != "__init__":
            node.body = ast.parse(f"return {expression}").body
    return ast.unparse(tree) if functions else None


def runs_code(reward: Reward) -> bool:
    """Whether the source of a reward has what runs code that a model writes: its own, that of the
    functions that it calls by name, and what these call of their own package."""
    target = target_of(reward.function)
    target = target if hasattr(target, "__name__") else type(target)
    return any(RUNS.search(inspect.getsource(each)) for each in _reached(target))


def _reached(target: Any) -> Iterator[Any]:
    """A function or class, and the functions with a source that it calls, directly or not."""
    waiting, seen = [target], {target}
    while waiting and len(seen) < FUNCTIONS:
        own = waiting.pop(0)
        try:
            source = inspect.getsource(own)
            names = vars(sys.modules[own.__module__])
        except (KeyError, OSError, TypeError):  # without a source
            continue
        yield own
        for owner, name in CALLED.findall(source):
            owners = vars(names[owner]) if inspect.ismodule(names.get(owner)) else {}
            called = owners.get(name) if owner else names.get(name)
            is_near = own is target or _package(called) == _package(own)
            if inspect.isfunction(called) and is_near and called not in seen:
                seen.add(called)
                waiting.append(called)


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", "")).partition(".")[0]


@contextmanager
def worker(reward: Reward) -> Iterator[Probe]:
    """The reward in a process of its own, which works in an empty folder.

    Raises UserError for a reward that cannot be sent there.
    """
    with tempfile.TemporaryDirectory() as folder:
        make = reward.remake or partial(_same, reward.function)
        deadline = min(reward.deadline, PATIENCE)
        isolated = replace(
            reward, isolate=True, deadline=deadline, remake=partial(_made_in, folder, make)
        )
        with closing(Probe(isolated)) as probe:
            yield probe


def _same(function: RewardFunction) -> RewardFunction:
    return function


def _made_in(folder: str, make: Callable[[], RewardFunction]) -> RewardFunction:
    function = make()
    os.chdir(folder)
    return function
