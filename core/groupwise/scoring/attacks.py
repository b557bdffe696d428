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
from warnings import catch_warnings, simplefilter

from groupwise.rewards import Reward, RewardFunction
from groupwise.rewards.members import target_of
from groupwise.scoring.probe import Probe

PATIENCE = 20.0
"""The most seconds of processor time that a reward may take for one of them."""
FENCED = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
RUNS = re.compile(r"(?<![.\w])(?:eval|exec)\(|\bsubprocess\b|\bos\.system\(")
"""What the source of a reward has that runs what a model writes."""

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
    """Whether the source of a reward, or of a function of its module that it names, has what runs
    code that a model writes."""
    target = target_of(reward.function)
    target = target if hasattr(target, "__name__") else type(target)
    with suppress(OSError, TypeError):  # without a source
        own = inspect.getsource(target)
        helpers = vars(sys.modules[target.__module__]).values()
        named = [
            f for f in helpers if inspect.isfunction(f) and re.search(rf"\b{f.__name__}\(", own)
        ]
        return any(RUNS.search(source) for source in (own, *map(inspect.getsource, named)))
    return False


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
