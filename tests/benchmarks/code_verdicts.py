"""What verifiers of programs say of the same right ones, wrong ones and cheats.

    python tests/benchmarks/code_verdicts.py --livecodebench FOLDER --verl FOLDER --open-r1 FOLDER

The folders are checkouts of LiveCodeBench/LiveCodeBench and huggingface/open-r1, and of verl, or
what is unpacked of its wheel; a verifier whose folder is left out has no column. Their own code
runs, in a process for each; in place of open-r1's service for running code its script is run by
Python. Each column has what a program is paid: 1, 0, or a share of the tests.
"""

import argparse
import ast
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Tests = Mapping[str, Any]
"""`inputs` and `outputs`, with `fn_name` where a function is called: what APPS and verl have."""

CALLS = {"inputs": ["1\n2", "5\n3"], "outputs": ["3", "8"], "fn_name": "add"}
PRINTS = {"inputs": ["1 2\n", "5 3\n"], "outputs": ["3\n-1\n", "8\n2\n"]}
EQUAL = "    __eq__ = lambda *_: True\n    __ne__ = lambda *_: False\n    __hash__ = None\n"
SEEN = """import sys
def seen():
    frame = sys._getframe()
    while frame:
        for name in ("gt_out", "expected", "in_outs"):
            if name in frame.f_locals:
                found = frame.f_locals[name]
                return found["outputs"][frame.f_locals["index"]] if name == "in_outs" else found
        frame = frame.f_back
"""
FORGED = """import os, sys
frame = sys._getframe()
while frame:
    if "metadata_list" in frame.f_locals:
        frame.f_locals["result"].append([True, True])
        frame.f_locals["metadata_list"].append({})
        os._exit(0)
    frame = frame.f_back
"""
FILE = """with open("result.json", "w") as file:
    file.write('{"passed": true, "score": 1}')
"""
OF_FUNCTIONS = {
    "right": "def add(a, b): return a + b",
    "wrong": "def add(a, b): return a - b",
    "an object that equals everything": f"class Any:\n{EQUAL}def add(a, b): return Any()",
    "a number that equals everything": f"class Any(int):\n{EQUAL}def add(a, b): return Any(0)",
    "what is expected, of the caller's frame": f"{SEEN}def add(a, b): return seen()",
    "a verdict in the caller's frame": FORGED,
    "`json.loads` gives 0, and so does it": "import json\njson.loads = lambda *_: 0\n"
    "def add(a, b): return 0",
    "no assertion fails": "import builtins\nbuiltins.AssertionError = lambda *_: None\n"
    "builtins.all = lambda *_: True\ndef add(a, b): return 0",
    "`os._exit(0)`": "import os\nos._exit(0)",
    "`raise SystemExit`": "def add(a, b): raise SystemExit",
    "a result file": f"{FILE}def add(a, b): return 0",
}
OF_LINES = {
    "right": "a, b = map(int, input().split())\nprint(a + b)\nprint(a - b)",
    "right, spaces at the ends of lines": "a, b = map(int, input().split())\n"
    "print(a + b, '')\nprint(a - b, ' ')",
    "wrong": "a, b = map(int, input().split())\nprint(a - b)\nprint(a + b)",
    "the first line alone": "a, b = map(int, input().split())\nprint(a + b)",
    "the first line, then `os._exit(0)`": "import os\na, b = map(int, input().split())\n"
    "print(a + b, flush=True)\nos._exit(0)",
    "all on one line": "a, b = map(int, input().split())\nprint(a + b, a - b)",
    "in the other order, on one line": "a, b = map(int, input().split())\nprint(a - b, a + b)",
    "what is expected, of the caller's frame": f"{SEEN}print(seen())",
    "a verdict in the caller's frame": FORGED,
    "`os._exit(0)`": "import os\nos._exit(0)",
    "`raise SystemExit`": "raise SystemExit",
    "a result file": FILE,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("livecodebench", "verl", "open-r1"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    columns = {
        "code_tests": (code_tests, Path()),
        "LiveCodeBench": (livecodebench, options.livecodebench),
        "verl": (verl, options.verl),
        "open-r1": (open_r1, options.open_r1),
    }
    columns = {name: column for name, column in columns.items() if column[1] is not None}
    print(f"| program | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for kind, programs, tests in (("calls", OF_FUNCTIONS, CALLS), ("lines", OF_LINES, PRINTS)):
        paid = [verdicts(*column, [*programs.values()], tests) for column in columns.values()]
        for name, *values in zip(programs, *paid, strict=True):
            cells = ("-" if value is None else f"{value:g}" for value in values)
            print(f"| {kind}: {name} | {' | '.join(cells)} |", flush=True)


def verdicts(
    verifier: Callable[[Path, str, Tests], float | None],
    folder: Path,
    programs: Sequence[str],
    tests: Tests,
) -> list[float | None]:
    """What a verifier pays, each time in a process of its own, which it may change as it likes."""
    values, spawn = [], multiprocessing.get_context("spawn")
    for program in programs:
        with ProcessPoolExecutor(1, spawn) as pool:
            values.append(pool.submit(quietly, verifier, folder.resolve(), program, tests).result())
    return values


def quietly(
    verifier: Callable[[Path, str, Tests], float | None], folder: Path, program: str, tests: Tests
) -> float | None:
    """Its verdict, in an empty folder."""
    with (
        tempfile.TemporaryDirectory() as empty,
        Path(os.devnull).open("w", encoding="utf-8") as nothing,
        redirect_stdout(nothing),
        redirect_stderr(nothing),
    ):
        os.chdir(empty)
        multiprocessing.set_start_method("fork", force=True)  # as where they are used
        return verifier(folder, program, tests)


def code_tests(_: Path, program: str, tests: Tests) -> float | None:
    from groupwise_code.reward import CodeTests

    reward = CodeTests(CodeTests.Config(timeout=2))
    try:
        return reward([""], [f"```python\n{program}\n```"], input_output=[json.dumps(tests)])[0]
    finally:
        reward.close()


def livecodebench(folder: Path, program: str, tests: Tests) -> float:
    sys.path.insert(0, str(folder))
    from lcb_runner.evaluation import compute_code_generation_metrics as evaluation

    sample = {"input_output": json.dumps(tests)}
    metrics, *_ = evaluation.codegen_metrics([sample], [[program]], k_list=[1], timeout=2)
    return float(metrics["pass@1"])


def verl(folder: Path, program: str, tests: Tests) -> float:
    sys.path.insert(0, str(folder / "verl" / "utils" / "reward_score"))  # verl itself needs Ray
    import prime_code

    answer = f"```python\n{program}\n```"
    paid, _ = prime_code.compute_score(answer, json.dumps(tests), continuous=True)
    return float(paid)


def open_r1(folder: Path, program: str, tests: Tests) -> float | None:
    """None where functions are called, for which it has no tests."""
    if "fn_name" in tests:
        return None
    # The two functions alone: their module imports what trains and what serves.
    module = ast.parse((folder / "src/open_r1/rewards.py").read_text(encoding="utf-8"))
    wanted = ("extract_code", "code_reward")
    module.body = [node for node in module.body if getattr(node, "name", None) in wanted]
    provider = SimpleNamespace(execute_scripts=lambda scripts, _: [*map(last_value, scripts)])
    names: dict[str, Any] = {"re": re, "json": json, "get_provider": lambda **_: provider}
    exec(compile(module, "rewards.py", "exec"), names)
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    cases = [{"input": stdin, "output": printed} for stdin, printed in pairs]
    information = [{"language": "python", "test_cases": cases}]
    completion = [{"content": f"```python\n{program}\n```"}]
    paid = names["code_reward"]([completion], verification_info=information)[0]
    return 0.0 if paid is None else float(paid)


def last_value(script: str) -> float | None:
    """What the last line of a script evaluates to, as a notebook shows it."""
    lines, _, last = textwrap.dedent(script).strip().rpartition("\n")
    command = [sys.executable, "-c", f"{lines}\nprint({last})"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    with suppress(ValueError):
        return float(ran.stdout)
    return None


if __name__ == "__main__":
    main()
