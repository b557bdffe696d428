"""`code_tests`: right programs are paid, wrong ones and cheats are not, in every format."""

import base64
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise import testing
from groupwise.kit.errors import UserError
from groupwise.prompt_source import PlacedRow
from groupwise.rewards import Reward, SampleErrors
from groupwise.scoring.audit import audit
from groupwise_code import contests
from groupwise_code import reward as code_tests
from groupwise_code.formats import cases_of
from groupwise_code.pickled import text_of
from groupwise_code.problem import FormatError
from groupwise_code.reward import CodeTests
from groupwise_sandbox import plain

RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
PRINTS = "print(sum(map(int, input().split())))\n"
CASES = [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}]
LINES = [{"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"}]


def packed(value: Any) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


FUNCTIONAL = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
STDIN = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
CALLED: dict[str, dict[str, Any]] = {
    "open-r1": {"verification_info": {"language": "python", "test_cases": CASES}},
    "open-r1 as text": {"verification_info": json.dumps({"test_cases": CASES})},
    "apps": {"input_output": json.dumps({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"})},
    "apps by lines": {
        "input_output": json.dumps({"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "add"})
    },
    "verl": {"ground_truth": json.dumps({"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "add"})},
    "verl asserts": {"ground_truth": json.dumps({"assert_case": ["assert add(1, 2) == 3"]})},
    "prime-rl": {"ground_truth": json.dumps(CASES)},
    "a list": {"test_cases": CASES},
    "mbpp": {
        "test_list": ["assert add(1, 2) == 3", "assert math.isclose(add(.1, .2), .3)"],
        "test_imports": ["import math"],
    },
    "humaneval": {
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
        "entry_point": "add",
    },
    "livecodebench": {
        "public_test_cases": json.dumps(FUNCTIONAL),
        "private_test_cases": packed(json.dumps(FUNCTIONAL)),
        "metadata": json.dumps({"func_name": "add"}),
    },
    "kodcode": {"test": "def test_add():\n    assert add(1, 2) == 3\n"},
    "kodcode by import": {
        "test": "from solution import add\n\ndef test_add():\n    assert add(a=1, b=2) == 3\n"
    },
    "kodcode, test_code": {
        "test_code": "from solution import add as plus\n\ndef test_add():\n"
        "    from solution import add\n    assert plus(1, 2) == add(2, 1) == 3\n\n"
        "if __name__ == '__main__':\n    import pytest\n    pytest.main()\n",
    },
    "parameters": {
        "test": "import pytest\nfrom solution import add\n\n"
        "@pytest.mark.parametrize('a, b', [(1, 2), pytest.param(2, 1, id='turned')])\n"
        "@pytest.mark.parametrize('total', [3])\n"
        "def test_add(a, b, total, sign=1):\n    assert sign * add(a, b) == total\n",
    },
    "what raises": {
        "test": "import pytest\nfrom solution import add\n\n"
        "def test_add():\n    assert add(0.1, 0.2) == pytest.approx(0.3)\n\n"
        "def test_kinds():\n    with pytest.raises(TypeError, match='operand'):\n"
        "        add(1, 'a')\n    assert add(1, 1) == 2\n",
    },
    "a class of tests": {
        "test": "from solution import add\n\nclass TestAdd:\n"
        "    def setup_method(self):\n        self.total = 3\n"
        "    def test_add(self):\n        assert add(1, 2) == self.total\n",
    },
    "unittest": {
        "entry_point": "add",
        "test": "import unittest\n\nclass Tests(unittest.TestCase):\n"
        "    @classmethod\n    def setUpClass(cls):\n        cls.total = 3\n"
        "    def test_add(self):\n        self.assertEqual(add(1, 2), self.total)\n",
    },
    "iterators": {
        "test": "def test_add():\n    assert add(*range(1, 3)) == 3\n"
        "    assert list(add([1], list(iter([2])))) == [1, 2]\n",
    },
    "assertions": {"test": "assert add(1, 2) == 3\n"},
}
PRINTED: dict[str, dict[str, Any]] = {
    "open-r1": {"verification_info": {"language": "python", "test_cases": LINES}},
    "apps": {"input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})},
    "verl": {"ground_truth": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})},
    "prime-rl": {"ground_truth": LINES},
    "livecodebench": {
        "public_test_cases": "[]",
        "private_test_cases": packed(json.dumps(STDIN)),
        "metadata": "{}",
    },
    "codeforces": {"official_tests": LINES, "examples": [], "input_mode": "stdio"},
    "codeforces, its examples": {"official_tests": None, "examples": LINES},
    "code_contests": {
        "public_tests": {"input": [], "output": []},
        "private_tests": {"input": ["1 2\n"], "output": ["3\n"]},
        "generated_tests": {"input": ["2 1\n"], "output": ["3\n"]},
        "input_file": "",
    },
    "livecodebench, its public tests": {
        "public_test_cases": json.dumps(STDIN),
        "private_test_cases": json.dumps(STDIN),
    },
}
CHEATS = {
    "an object that equals everything": (
        "class Any:\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"
        "def add(a, b): return Any()\n"
    ),
    "a number that equals everything": (
        "class Any(int):\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"
        "def add(a, b): return Any(7)\n"
    ),
    "an exit with 0": "import sys\nsys.exit(0)\n",
    "an exit at once": "import os\nos._exit(0)\n",
    "an exit in the call": "import os\ndef add(a, b): os._exit(0)\n",
    "a patched builtin": (
        "import builtins\nbuiltins.abs = builtins.AssertionError = lambda *a: 0\n"
        "def add(a, b): return 0\n"
    ),
    "patched comparison": (
        "import operator, math\noperator.eq = math.isclose = lambda *a, **k: True\n"
        "def add(a, b): return 0\n"
    ),
    "the caller's frames": (
        "import sys\n"
        "def add(a, b):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for value in frame.f_locals.values():\n"
        "            if isinstance(value, dict) and 'expected' in value:\n"
        "                return value['expected']\n"
        "        frame = frame.f_back\n"
        "    return None\n"
    ),
    "what is on the heap": (
        "import gc\n"
        "def add(a, b):\n"
        "    for o in gc.get_objects():\n"
        "        if isinstance(o, dict) and 'output' in o: return o['output']\n"
    ),
    "a forged message of passing": (
        "import os, struct\nm = b'{\"passed\": true}'\n"
        "os.write(3, struct.pack('!Q', len(m)) + m)\n"
        "def add(a, b): return 0\n"
    ),
    "a forged definition": (
        'import os, struct\nm = b\'{"defined": ["add"]}\'\n'
        "os.write(3, struct.pack('!Q', len(m)) + m)\nos._exit(0)\n"
    ),
    "a forged verdict": (
        'import os, struct\nm = b\'{"error": "", "reasons": [null]}\'\n'
        "os.write(3, struct.pack('!Q', len(m)) + m)\ndef add(a, b): return 0\n"
    ),
    "a forged refusal": (
        'import os, struct\nm = b\'{"error": "", "refused": ""}\'\n'
        "os.write(3, struct.pack('!Q', len(m)) + m)\ndef add(a, b): return 0\n"
    ),
    "own tests": "def test_nothing(): pass\ndef check(candidate): pass\ndef add(a, b): return 0\n",
    "a builtin of the tests": "def abs(x): return 0\ndef add(a, b): return 0\n",
    "a print of the answer to the wrong place": "print(3)\ndef add(a, b): pass\n",
    "not a number": "def add(a, b): return float('nan')\n",
    "True for one": "def add(a, b): return True\n",
    "endless data": "def add(a, b):\n    x = []\n    x.append(x)\n    return x\n",
    "much data": "def add(a, b): return 'x' * (1 << 24)\n",
    "no end": "def add(a, b):\n    while True: pass\n",
    "an import of the tests": "import tests, answer\ndef add(a, b): return 0\n",
}


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    made = CodeTests(CodeTests.Config(timeout=1, memory=128, modules=("pytest",)))
    yield made
    made.close()


def value(reward: CodeTests, program: str, row: dict[str, Any]) -> float | None:
    columns = {name: [column] for name, column in row.items()}
    return reward([""], [f"Here:\n```python\n{program}\n```"], **columns)[0]


@pytest.mark.parametrize("name", CALLED)
def test_functions_in_every_format(reward: CodeTests, name: str) -> None:
    assert value(reward, RIGHT, CALLED[name]) == 1.0
    assert value(reward, WRONG, CALLED[name]) == 0.0


@pytest.mark.parametrize("name", PRINTED)
def test_programs_in_every_format(reward: CodeTests, name: str) -> None:
    assert value(reward, PRINTS, PRINTED[name]) == 1.0
    assert value(reward, "print(4)", PRINTED[name]) == 0.0
    assert value(reward, "print(3)\nprint(4)", PRINTED[name]) == 0.0
    assert value(reward, "print('3', end='  ')", PRINTED[name]) == 1.0
    assert value(reward, "print(3.0)", PRINTED[name]) == 0.0


@pytest.mark.parametrize("kind", ["prime-rl", "mbpp", "humaneval", "apps", "kodcode"])
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_nothing(reward: CodeTests, name: str, kind: str) -> None:
    assert value(reward, CHEATS[name], CALLED[kind]) == 0.0


def test_laws() -> None:
    rows = [{"prompt": "Add.", "test_cases": CASES}, {"prompt": "Add!", "test_cases": CASES}]
    programs = [f"```python\n{code}\n```" for code in (RIGHT, WRONG, "def", "")]
    instance = CodeTests(CodeTests.Config(timeout=1))
    testing.check_reward(instance, rows, programs, group_size=2)


def test_a_class_of_methods(reward: CodeTests) -> None:
    row = {"test_cases": [{"fn_name": "Solution.add", "input": [1, 2], "output": 3}]}
    program = "class Solution:\n    def add(self, a: List[int], b): return a + b\n"
    assert value(reward, "from typing import List\n" + program, row) == 1.0


def test_a_test_that_expects_an_exception(reward: CodeTests) -> None:
    tests = "try:\n    add(1, 'x')\nexcept TypeError:\n    pass\nelse:\n    assert False\n"
    assert value(reward, RIGHT, {"test": tests}) == 1.0
    assert value(reward, "def add(a, b): return 3", {"test": tests}) == 0.0


def test_a_share_of_the_tests_is_paid_if_asked_for() -> None:
    cases = [{"fn_name": "add", "input": [n, n], "output": 2 * n} for n in range(4)]
    reward = CodeTests(CodeTests.Config(pay="share", timeout=1))
    try:
        assert value(reward, "def add(a, b): return 0 if a else 0", {"test_cases": cases}) == 0.25
        assert value(reward, RIGHT, {"test_cases": cases}) == 1.0
    finally:
        reward.close()


def paid(config: CodeTests.Config, programs: list[str], **columns: Any) -> tuple[Any, Any]:
    """What programs get on one row, and which tests they failed."""
    reward, logged = CodeTests(config), dict[str, Any]()
    repeated = {name: [column] * len(programs) for name, column in columns.items()}
    try:
        values = reward([""] * len(programs), programs, log_extra=logged.__setitem__, **repeated)
    finally:
        reward.close()
    return values, logged["failed_tests"]


FILE = "def test_one():\n    assert add(1, 1) == 2\ndef test_two():\n    assert add(1, 2) == 3\n"
ENDS = "import os\ndef add(a, b):\n    if b == 1: os._exit(0)\n    return a + b"


def test_each_function_of_a_file_is_a_test(reward: CodeTests) -> None:
    config = CodeTests.Config(timeout=1, pay="share")
    programs = [RIGHT, "def add(a, b): return 2", WRONG, ENDS, "1 / 0"]
    values, failed = paid(config, programs, test=FILE)
    # What a program breaks stays broken: a test after its end is failed, too.
    assert values == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert failed[0] is None
    assert failed[1] == "2 of 2: assert add(1, 2) == 3: AssertionError: "
    assert failed[2].startswith("1, 2 of 2: assert add(1, 1) == 2: AssertionError")
    assert failed[4].startswith("1, 2 of 2: ZeroDivisionError")


def test_tests_that_the_rows_own_solution_fails_can_be_left_out() -> None:
    cases = [{"fn_name": "add", "input": [1, n], "output": n + 1} for n in (1, 2)]
    wrong = {"fn_name": "add", "input": [1, 3], "output": 5}
    programs = [RIGHT, "def add(a, b): return 2", WRONG]
    for pay, value in (("all", 0.0), ("share", 0.5)):
        config = CodeTests.Config(timeout=1, pay=pay, tests="gold")
        columns = {"test_cases": [wrong, *cases], "solution": RIGHT}
        assert paid(config, programs, **columns)[0] == [1.0, value, 0.0]
        broken = FILE + "def test_three():\n    assert add(1, 3) == 5\n"
        assert paid(config, programs, test=broken, solution=RIGHT)[0] == [1.0, value, 0.0]
        assert paid(config, programs, test_cases=cases)[0] == [1.0, value, 0.0]
    with pytest.raises(SampleErrors) as raised:
        paid(config, [RIGHT], test_cases=[wrong], solution=RIGHT)
    assert raised.value.errors == {0: "the row's own solution passes none of its tests"}


def test_a_rows_tests_are_read_once_for_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(code_tests, "cases_of", lambda row: read.append(row) or cases_of(row))
    other = [{**CASES[0], "output": -1}]
    columns: dict[str, Any] = {"test_cases": [*[CASES] * 3, *[other] * 2, CASES]}
    reward = CodeTests(CodeTests.Config(timeout=1))
    try:
        values = reward([""] * 6, [RIGHT, WRONG, RIGHT, RIGHT, WRONG, RIGHT], **columns)
    finally:
        reward.close()
    assert values == [1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert len(read) == 3


def test_an_argument_that_cannot_be_passed_is_the_rows_fault(reward: CodeTests) -> None:
    tests = "class Two:\n    value = 2\ndef test_add():\n    assert add(1, Two()) == 3\n"
    with pytest.raises(SampleErrors) as raised:
        value(reward, RIGHT, {"test": tests})
    assert raised.value.errors[0].startswith("add cannot be called with this: an object of Two")
    guarded = tests.replace("assert add(1, Two()) == 3", "\n        try:\n            add(Two())")
    guarded += "        except Exception:\n            pass\n"
    with pytest.raises(SampleErrors):
        value(reward, RIGHT, {"test": guarded})


def test_a_list_of_one_is_taken_for_wrapped_where_all_of_a_row_are(reward: CodeTests) -> None:
    calls = {"fn_name": "unique", "inputs": [[[1, 2, 2]], [[3, 3]]]}
    row = {"input_output": json.dumps({**calls, "outputs": [[1, 2], [3]]})}
    wrapped = {"input_output": json.dumps({**calls, "outputs": [[[1, 2]], [[3]]]})}
    for each in (row, wrapped):
        assert value(reward, "def unique(x): return sorted({*x})", each) == 1.0
        assert value(reward, "def unique(x): return sorted({*x}) if len(x) > 2 else 3", each) == 0.0


def test_a_test_without_an_input_has_an_empty_one(reward: CodeTests) -> None:
    row = {"test_cases": [{"input": None, "output": "0"}]}
    assert value(reward, "import sys\nprint(len(sys.stdin.read()))", row) == 1.0


@pytest.mark.parametrize(
    "given",
    ["10**5000", "[10**5000]", "{k * (2**61 - 1) for k in range(200)}", "1e400", "'\\ud800'"],
)
def test_a_value_that_is_hard_to_show_or_to_hold_is_wrong(reward: CodeTests, given: str) -> None:
    assert value(reward, f"def add(a, b):\n    return {given}", {"test_cases": CASES}) == 0.0


@pytest.mark.parametrize("kind", ["set", "dict"])
def test_values_with_one_hash_are_refused_before_they_are_compared(kind: str) -> None:
    def written(step: int) -> dict[str, Any]:
        numbers = [{"int": hex(each * step)} for each in range(1000)]
        return {kind: numbers if kind == "set" else [[each, None] for each in numbers]}

    assert len(plain.decoded(written(2**61 + 1))) == 1000
    with pytest.raises(plain.NotPlainError, match="the same hash"):
        plain.decoded(written(2**61 - 1))


def test_a_completion_without_a_program_is_wrong(reward: CodeTests) -> None:
    columns: dict[str, Any] = {"test_cases": [CASES] * 4}
    texts = ["", "```rust\nfn main() {}\n```", "I cannot.", "<think>```python\n" + RIGHT + "```"]
    assert reward([""] * 4, texts, **columns) == [0.0, 0.0, 0.0, 0.0]
    block = f"```python\n{RIGHT}```"
    for begun in (None, "<think>\n"):  # by the prompt
        columns = {} if begun is None else {"thinking_prefix": [begun] * 3}
        texts = [block, f"{block}</think>", f"Hm.</think>{block}"]
        expected = [float(begun is None), 0.0, 1.0]
        assert reward([""] * 3, texts, test_cases=[CASES] * 3, **columns) == expected
    said = [{"role": "assistant", "content": block}, {"role": "user", "content": "Thanks."}]
    assert reward([""], [said], test_cases=[CASES]) == [1.0]
    assert reward([""], [f"<think>\n{WRONG}</think>\n```py\n{RIGHT}```"], test_cases=[CASES]) == [1]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"test_cases": []},
        {"test": "assert True"},
        {"test": "def helper():\n    assert add(1, 2) == 3\n"},
        {"test": "def test_add(benchmark):\n    assert add(1, 2) == 3\n"},
        {"test": "assert add(1, 2) == 3", "entry_point": "add"},
        {"test": "if __name__ == '__main__':\n    assert add(1, 2) == 3"},
        {"test": "import solution\nassert solution.add(1, 2) == 3"},
        {"test": "def test_add(tmpdir):\n    assert add(1, 2) == 3"},
        {"test": "class Own(Base):\n    pass\ndef test_add():\n    assert Own().add(1, 2) == 3"},
        {"test": "def test_point():\n    assert Point(1) == Point(1) and Point(1).x == 1"},
        {"test": "def test_point():\n    p = Point(1)\n    assert (p + p).x == 2 and p.x == 1"},
        {"test": "import runpy\ndef test_add():\n    open('a')\n    assert add(runpy, 2) == 3"},
        {"test": "import pickle\ndef test_add():\n    assert pickle.loads(add(1, 2)) == 3"},
        {"test": "def test_add():\n    assert eval(add(1, 2)) == 3"},
        {"test": "def test_add():\n    exec(add(1, 2))"},
        {"test_list": ["assert eval(add(1, 2)) == 3"]},
        {"official_tests": LINES, "checker": "import sys\nprint(eval(open(sys.argv[3]).read()))"},
        {"test": "@pytest.fixture\ndef a():\n    return 1\ndef test_add():\n    add(1, 2)"},
        {"test": "@pytest.mark.skip\ndef test_add():\n    assert add(1, 2) == 3"},
        {"test": "@pytest.mark.parametrize(NAMES, [1])\ndef test_add(a):\n    add(a, 1)"},
        {"test": "class Tests(TestCase):\n    def add(self):\n        assert add(1, 2) == 3"},
        {"test": "import pandas\ndef test_add():\n    assert add(1, 2) == 3"},
        {"test_cases": [3]},
        {"test_cases": [{**CASES[0], "fn_name": 5}]},
        {"test_cases": [{"input": "1", "output": None}]},
        {"test_cases": CASES, "language": "cpp"},
        {"input_output": {"inputs": [[1, 2]], "outputs": []}},
        {"ground_truth": {"inputs": [[1]]}},
        {"test": "def ("},
        {"ground_truth": "[1"},
        {"verification_info": {"language": "rust", "test_cases": LINES}},
        {"official_tests": LINES, "input_mode": "file"},
        {"official_tests": LINES, "interaction_format": "Ask."},
        {"official_tests": LINES, "language": "Java 17"},
        {"official_tests": LINES, "generated_checker": "#include <testlib.h>\nint main() {}"},
        {"private_tests": {"input": ["1"], "output": ["1"]}, "input_file": "input.txt"},
        {"private_tests": {"input": ["1"], "output": []}},
        {"private_test_cases": "no base64"},
        {"private_test_cases": base64.b64encode(b"no stream").decode()},
        {"private_test_cases": packed(json.dumps(FUNCTIONAL))},
        {"private_test_cases": packed(STDIN)},
        {"private_test_cases": packed("[")},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_read_is_named_before_a_run(
    reward: CodeTests, row: dict[str, Any]
) -> None:
    with pytest.raises(FormatError):
        reward.check_row(row)
    with pytest.raises(SampleErrors):
        value(reward, RIGHT, row)


@pytest.mark.parametrize("deep", ["-" * 100_000 + "3", "3" + " + 0" * 400], ids=["signs", "sum"])
def test_code_that_is_nested_too_deeply_is_refused(reward: CodeTests, deep: str) -> None:
    with pytest.raises(FormatError):
        reward.check_row({"test": f"assert add(1, 2) == {deep}"})
    if deep[0] == "-":
        with pytest.raises(FormatError, match="checker is not Python"):
            reward.check_row({"test_cases": LINES, "checker": f"print({deep})"})


def test_data_without_a_column_of_tests_is_refused(reward: CodeTests) -> None:
    own = Reward(name="code_tests", function=reward)
    with pytest.raises(UserError, match=r"one of the columns 'verification_info', .* 'examples'; "):
        own.check_columns({"tests": None})
    own.check_columns({"test_list": None})


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["HOSTILE"],)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_more_than_a_text_is_refused_and_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.setenv("HOSTILE", str(tmp_path / "made"))
    assert text_of(pickle.dumps("a text", protocol)) == "a text"
    for value in (Hostile(), [Hostile()], {"a": 1}, ["a text"], 1, None):
        with pytest.raises(FormatError, match="pickle of more than a text"):
            text_of(pickle.dumps(value, protocol))
    for cut in (b"", b"no pickle", pickle.dumps("a text", protocol)[:-3], b"\x80\x04."):
        with pytest.raises(FormatError):
            text_of(cut)
    assert not (tmp_path / "made").exists()


def test_tests_that_are_large_when_they_are_decompressed_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"private_test_cases": packed(json.dumps(STDIN) + " " * 100_000)}
    assert len(cases_of(row)) == 1
    monkeypatch.setattr(contests, "MOST_BYTES", 10_000)
    with pytest.raises(FormatError, match="MiB when it is decompressed"):
        cases_of(row)


@pytest.mark.parametrize("name", ["livecodebench", "apps by lines"])
def test_a_function_may_be_a_method_of_solution_as_on_leetcode(
    reward: CodeTests, name: str
) -> None:
    program = (
        "class Solution:\n    def add(self, a: Optional[int], b) -> int:\n        return a {} b"
    )
    assert value(reward, program.format("+"), CALLED[name]) == 1.0
    assert value(reward, program.format("-"), CALLED[name]) == 0.0


def test_a_function_that_leetcode_imports_is_none_of_the_programs(reward: CodeTests) -> None:
    row = {"test_cases": [{"fn_name": "gcd", "input": [4, 6], "output": 2}]}
    assert value(reward, "pass", row) == 0.0
    assert value(reward, "from math import gcd", row) == 1.0


CHECKER = """
import sys
from pathlib import Path
with open(sys.argv[1]) as file:
    total = int(file.readline())
pair = [int(word) for word in Path(sys.argv[3]).read_text().split()]
try:
    open(sys.argv[3], "w")
except OSError:
    print(1 if len(pair) == 2 and sum(pair) == total else 0)
"""


def test_a_checker_judges_where_several_outputs_are_right(reward: CodeTests) -> None:
    row = {
        "official_tests": [{"input": "5\n", "output": "2 3\n"}],
        "generated_checker": CHECKER,
    }
    for right in ("print(2, 3)", "print(1)\nprint(int(input()) - 1)"):
        assert value(reward, right, row) == 1.0
    # In turn: wrong, not read by the checker, and a verdict of the program's own.
    for wrong in ("print(2, 2)", "print('x')", "pass", "print(1)", "print(True)", "1 / 0"):
        assert value(reward, wrong, row) == 0.0


def test_a_program_has_neither_the_checkers_files_nor_its_arguments(reward: CodeTests) -> None:
    row = {"official_tests": [{"input": "5\n", "output": "2 3\n"}], "generated_checker": CHECKER}
    for name in ("input.txt", "expected.txt", "output.txt"):
        assert value(reward, f"print(open({name!r}).read())", row) == 0.0
    assert value(reward, "import sys\nprint(open(sys.argv[2]).read())", row) == 0.0


def test_the_gold_completion_of_code_contests_is_its_first_in_python_3(reward: CodeTests) -> None:
    solutions = {"language": [2, 1, 3], "solution": ["int main()", "print 1", PRINTS]}
    gold = reward.gold_completion({**PRINTED["code_contests"], "solutions": solutions})
    assert gold == f"```python\n{PRINTS}\n```"


def test_its_own_solution_is_the_gold_completion(reward: CodeTests) -> None:
    row = {
        **CALLED["humaneval"],
        "prompt": "def add(a, b):\n",
        "canonical_solution": "    return a + b\n",
    }
    gold = reward.gold_completion(row)
    assert gold is not None
    columns = {name: [column] for name, column in row.items() if name != "prompt"}
    assert reward([row["prompt"]], [gold], **columns) == [1.0]


@pytest.mark.slow
def test_hanging_programs_end_within_the_calls_time() -> None:
    import time

    from groupwise.rewards.deadline import ending_in

    reward = CodeTests(CodeTests.Config(timeout=1, parallel=2))
    began = time.monotonic()
    try:
        hanging = ["```python\ndef add(a, b):\n    while True: pass\n```"] * 256
        with ending_in(8.0), pytest.raises(SampleErrors) as raised:
            reward([""] * 256, hanging, test_cases=[CASES] * 256)
    finally:
        reward.close()
    assert time.monotonic() - began < 8.0 + 5.0 + 10.0  # of the machine
    assert 0.0 in raised.value.values


def test_programs_that_would_outlast_the_call_are_ended_with_it() -> None:
    import time

    from groupwise.rewards.deadline import ending_in

    reward = CodeTests(CodeTests.Config(timeout=5, parallel=2))
    began = time.monotonic()
    try:
        with ending_in(3.0), pytest.raises(SampleErrors) as raised:
            reward([""] * 4, [RIGHT, *["import time\ntime.sleep(60)"] * 3], test_cases=[CASES] * 4)
        assert time.monotonic() - began < 3.0 + 5.0  # of the machine; the programs have 25
        assert raised.value.values[0] == 1.0
        assert reward([""], [RIGHT], test_cases=[CASES]) == [1.0]  # the next call
    finally:
        reward.close()


@pytest.mark.parametrize(
    "row", [{**CALLED["open-r1"], "solution": RIGHT}, {**PRINTED["apps"], "solution": PRINTS}]
)
@pytest.mark.slow
def test_the_audit_finds_nothing_that_is_wrong_and_paid(row: dict[str, Any]) -> None:
    rows = [PlacedRow({"prompt": "Add two numbers.", **row}, "row 0")]
    made = audit(Reward(name="code_tests", function=CodeTests(), remake=CodeTests), rows)
    assert made is not None
    assert (made.counts["gold"], made.untried) == ((1, 1, 0), "")
    assert {count.paid for kind, count in made.counts.items() if kind != "gold"} == {0}
    assert len([kind for kind in made.counts if kind.startswith("a program that ")]) == 5
    assert made.findings == []
