"""`code_tests` on programs in C, C++ and JavaScript."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.code.test_code_tests import CALLED, CHECKER, PRINTED, paid

from groupwise.kit.errors import UserError
from groupwise.prompt_source import PlacedRow
from groupwise.rewards import Reward
from groupwise.scoring.audit import audit
from groupwise_code.problem import FormatError
from groupwise_code.reward import CodeTests
from groupwise_sandbox import programs
from groupwise_sandbox.languages import LANGUAGES

C_READS = '#include <stdio.h>\nint main() { int a, b; scanf("%d %d", &a, &b);'
RIGHT = {
    "c": C_READS + ' printf("%d\\n", a + b); }',
    "cpp": "#include <iostream>\nusing namespace std;\n"
    "int main() { int a, b; cin >> a >> b; cout << a + b << endl; }",
    "javascript": "const words = require('fs').readFileSync(0, 'utf8').split(' ')\n"
    "console.log(words.map(Number).reduce((a, b) => a + b))",
}
WRONG = {
    "c": {
        "another sum": C_READS + ' printf("%d\\n", a - b); }',
        "nothing": "int main() {}",
        "a failure after the sum": C_READS + ' printf("%d\\n", a + b); return 1; }',
        "a crash after the sum": C_READS + ' printf("%d\\n", a + b); fflush(0); *(char *)0 = 1; }',
        "no program": "I think that it is 3.",
        "a file of the machine": '#include "/etc/passwd"\nint main() {}',
        "no end": "int main() { for (;;); }",
    },
    "cpp": {
        "no function": "#include <string>\n",
        "an exit": "#include <cstdlib>\nint x = (exit(0), 1);\nint main() {}",
    },
    "javascript": {
        "no script": "this is no script",
        "another sum": "console.log(4)",
        "an exit": "process.exit(0)",
        "an exception after the sum": "console.log(3)\nthrow 'x'",
        "a search for the tests": "console.log(Object.values(process.env).join(' '))",
    },
}
EACH_WRONG = [(language, name) for language, wrong in WRONG.items() for name in wrong]


def block(language: str, code: str) -> str:
    return f"So:\n```{language}\n{code}\n```"


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    made = CodeTests(CodeTests.Config(timeout=1, languages=("cpp", "python")))
    try:
        for language in RIGHT:
            if (reason := made._machine.refusal(language)) is not None:
                pytest.skip(reason)
        yield made
    finally:
        made.close()


def value(reward: CodeTests, completion: str, row: dict[str, Any]) -> float | None:
    return reward([""], [completion], **{name: [column] for name, column in row.items()})[0]


@pytest.mark.parametrize("language", RIGHT)
def test_a_row_may_name_the_language(reward: CodeTests, language: str) -> None:
    row = {**PRINTED["apps"], "language": language}
    assert value(reward, block(language, RIGHT[language]), row) == 1.0
    assert value(reward, block("", RIGHT[language]), row) == 1.0
    assert value(reward, RIGHT[language], row) == 1.0
    assert value(reward, block("python", "print(3)"), row) == 0.0
    checked = {**row, "official_tests": [{"input": "2 3\n", "output": ""}], "checker": "print(1)"}
    del checked["input_output"]
    assert value(reward, block(language, RIGHT[language]), checked) == 1.0
    checked["checker"] = CHECKER
    assert value(reward, block(language, RIGHT[language]), checked) == 0.0


@pytest.mark.parametrize(("language", "name"), EACH_WRONG)
def test_what_is_wrong_is_not_paid(reward: CodeTests, language: str, name: str) -> None:
    row = {**PRINTED["apps"], "language": language}
    assert value(reward, block(language, WRONG[language][name]), row) == 0.0


@pytest.mark.slow
def test_the_fence_names_the_language_where_the_row_does_not(reward: CodeTests) -> None:
    row = {"test_cases": [{"input": "1 2", "output": "3"}]}
    python = "print(sum(map(int, input().split())))"
    for fence in ("cpp", "c++", "C++", ""):
        assert value(reward, block(fence, RIGHT["cpp"]), row) == 1.0
    everything = RIGHT["cpp"].replace("iostream", "bits/stdc++.h")  # takes 5 times as long
    assert value(reward, block("cpp", everything), row) == 1.0
    assert value(reward, block("py", python), row) == 1.0
    assert value(reward, block("javascript", RIGHT["javascript"]), row) == 0.0
    both = block("cpp", RIGHT["cpp"]) + "\n" + block("python", "print(4)")
    assert value(reward, both, row) == 0.0
    assert value(reward, block("python", "def add(a, b): return a + b"), CALLED["a list"]) == 1.0
    assert value(reward, block("cpp", "def add(a, b): return a + b"), CALLED["a list"]) == 0.0


def test_which_tests_failed_and_what_does_not_compile_is_said(reward: CodeTests) -> None:
    cases = [{"input": f"{n} 1", "output": str(n + 1)} for n in range(4)]
    config = CodeTests.Config(pay="share", languages=("c",), timeout=1)
    texts = [
        block("c", C_READS + ' printf("%d", a > 1 ? 0 : a + b); }'),
        block("c", "int main() { return missing; }"),
    ]
    values, failed = paid(config, texts, test_cases=cases)
    assert values == [0.5, 0.0]
    assert failed[0] == "3, 4 of 4: printed '0', expected '3'"
    assert failed[1].startswith("does not compile: program.c:1:21: error: ")


@pytest.mark.slow
def test_the_audit_finds_nothing(reward: CodeTests) -> None:
    row = {**PRINTED["apps"], "language": "cpp", "solution": RIGHT["cpp"]}
    rows = [PlacedRow({"prompt": "Add two numbers.", **row}, "row 0")]
    made = audit(Reward(name="code_tests", function=CodeTests(), remake=CodeTests), rows)
    assert made is not None
    assert made.counts["gold"] == (1, 1, 0)
    assert made.findings == []


def test_gold_of_code_contests_is_in_the_first_language(reward: CodeTests) -> None:
    solutions = {"language": [3, 2], "solution": ["print(3)", RIGHT["cpp"]]}
    gold = reward.gold_completion({**PRINTED["code_contests"], "solutions": solutions})
    assert gold == f"```cpp\n{RIGHT['cpp']}\n```"


def test_tests_that_the_rows_own_solution_fails_can_be_left_out(reward: CodeTests) -> None:
    cases = [{"input": "1 2", "output": "3"}, {"input": "1 2", "output": "4"}]
    config = CodeTests.Config(tests="gold", languages=("c",))
    texts = [block("c", RIGHT["c"])]
    assert paid(config, texts, test_cases=cases, solution=RIGHT["c"])[0] == [1.0]


@pytest.mark.parametrize(
    ("absent", "sentence"),
    [
        ("bwrap", "a program in C++ cannot be run here: install the package bubblewrap"),
        ("g++", "a program in C++ cannot be run here: install the package g++"),
    ],
)
def test_what_has_to_be_installed_is_said_before_a_run(
    monkeypatch: pytest.MonkeyPatch, absent: str, sentence: str
) -> None:
    which = shutil.which
    if which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")

    def present(name: str, path: str | None = None) -> str | None:
        return None if name == absent else which(name, path=path)

    monkeypatch.setattr(shutil, "which", present)
    made = CodeTests()
    try:
        with pytest.raises(FormatError) as raised:
            made.check_row({**PRINTED["apps"], "language": "cpp"})
        assert str(raised.value) == f"{sentence}; or name a server that runs it: `server`"
        if absent == "bwrap":  # no server of that protocol runs C
            with pytest.raises(
                FormatError, match=r"in C cannot .*: install the package bubblewrap$"
            ):
                made.check_row({**PRINTED["apps"], "language": "c"})
        made.check_row(PRINTED["apps"])
    finally:
        made.close()


def test_a_machine_without_a_sandbox_is_told_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise_sandbox.system_calls.is_supported", lambda: False)
    with pytest.raises(UserError, match=r"a sandbox needs Linux on x86-64 or aarch64.*: `server`"):
        CodeTests()


def test_a_compiler_that_makes_no_programs_is_no_answers_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = replace(LANGUAGES["c"], compiling="gcc -lmissing -o program program.c")
    monkeypatch.setattr(programs, "LANGUAGES", {**LANGUAGES, "c": broken})
    made = CodeTests()
    try:
        with pytest.raises(FormatError, match="a program in C cannot be run here: "):
            made.check_row({**PRINTED["apps"], "language": "c"})
    finally:
        made.close()


def test_a_natural_language_in_the_column_language_is_ignored_with_one_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"test_cases": [{"input": "1", "output": "2"}]}
    reward = CodeTests()
    for name in ("en", "English", "zh", "Deutsch", ""):
        reward.check_row({**row, "language": name})
    assert capsys.readouterr().err.count("'en' in the column 'language' is not a programming") == 1
    for name in ("Java 17", "rust", "Go", "C#"):
        with pytest.raises(FormatError, match="only Python, C, C"):
            reward.check_row({**row, "language": name})
    reward.close()
    named = CodeTests(CodeTests.Config(language="written_in"))
    named.check_row({**row, "language": "Java 17", "written_in": "Python 3"})
    with pytest.raises(FormatError, match="programs in 'English'"):
        named.check_row({**row, "written_in": "English"})
    named.close()
