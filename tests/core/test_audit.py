"""The audit finds what is planted in rewards, and says nothing of good ones."""

import sys
import time
from pathlib import Path

import pytest

from groupwise.prompt_source import PlacedRow
from groupwise.rewards import Reward
from groupwise.scoring import attacks
from groupwise.scoring.audit import audit
from groupwise.scoring.mutants import changed_digit, prefix

ANSWERS = ["7", "27", "0.50", "71", "112", "-3"]
ROWS = [{"prompt": f"Sum {n} is?", "answer": gold} for n, gold in enumerate(ANSWERS)]
NUMBERS = [{**row, "answer": n} for n, row in enumerate(ROWS, start=5)]
CODE = [
    {"prompt": "Write add.", "tests": f"assert add(1, 2) == {3 * k}", "solution": gold}
    for k in (1, 2)
    for gold in [f"def add(a, b):\n    return {k} * (a + b)"]
]


def placed(rows):
    return [PlacedRow(row, f"row {number}") for number, row in enumerate(rows)]


def tried(function, rows=ROWS):
    return audit(Reward(name="own", function=function), placed(rows))


def kinds(function, rows=ROWS):
    return [finding.kind for finding in tried(function, rows).findings]


def each(is_paid):
    """A reward of two texts, the completion and gold."""

    def reward(completions, answer, **_):
        return [float(is_paid(*pair)) for pair in zip(completions, answer, strict=True)]

    return reward


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("is_paid", "rows", "found"),
    [
        (lambda text, gold: gold in text, ROWS, ["another row's gold", "two answers"]),
        (lambda text, gold: text == gold or not text, ROWS, ["an empty completion"]),
        (lambda text, gold: gold.startswith(text or "?"), ROWS, ["a prefix of gold"]),
        (lambda text, gold: text == gold or "Sum" in text, ROWS, ["the prompt"]),
        (
            lambda text, gold: text == gold or (text[:-1] == gold[:-1] and text > gold),
            ROWS,
            ["gold with a changed digit"],
        ),
        (lambda text, gold: text == gold, NUMBERS, ["gold"]),
        (lambda text, gold: text == gold != "71", ROWS, ["gold"]),
        (lambda text, _: True, ROWS, ["an empty completion"]),
        (lambda text, gold: text == gold or 1 / len(text) < 0, ROWS, ["an empty completion"]),
    ],
)
def test_what_is_planted_is_found(is_paid, rows, found):
    assert kinds(each(is_paid), rows) == found


@pytest.mark.parametrize(
    "is_paid",
    [
        lambda text, gold: text == gold,
        lambda text, gold: text.strip().casefold() == str(gold).casefold(),
        lambda text, gold: number(text) == float(gold),
        lambda text, gold: 2 * (number(text) == float(gold)) + 0.5 * (number(text) is not None),
        lambda text, gold: number(text) is not None and abs(number(text) - float(gold)) <= 1,
        lambda text, gold: text.endswith(f"\\boxed{{{gold}}}"),
        lambda text, gold: text.split("####")[1:] == [f" {gold}"],
        lambda text, gold: f"<answer>\n{gold}\n</answer>" in text and text.startswith("<think>"),
    ],
)
def test_nothing_is_said_of_good_ones(is_paid):
    made = tried(each(is_paid))
    assert made.counts["gold"] == (6, 6, 0)
    assert made.findings == []


def test_the_first_row_is_named_with_what_it_gets():
    (first, *_) = tried(each(lambda text, gold: gold in text)).findings
    assert first.sentence == (
        "pays another row's gold (at 1 of 6 prompts tried): '27' gets 1, and gold is '7' (row 0)"
    )
    (first,) = tried(each(lambda text, gold: text == gold != "71")).findings
    assert first.sentence == (
        "does not pay the gold answer (at 1 of 6 prompts tried): '71' gets 0 (row 3)"
    )


def test_what_the_reward_itself_holds_equal_is_counted_and_not_wrong():
    made = tried(each(lambda text, gold: text[:1] == gold[:1]), [*ROWS[1:2], *ROWS[4:5]])
    assert made.counts["a prefix of gold"] == (0, 2, 2)
    assert made.findings == []


def test_rewards_without_gold_are_left_out():
    def has_tags(completions, **_):
        return [float("<answer>" in text) for text in completions]

    def is_short(completions, **_):
        return [float(len(text) < 50) for text in completions]

    def passes(completions, ground_truth, **_):
        return [0.0 for _ in completions]

    data = [{"prompt": "Write it.", "ground_truth": '{"inputs": ["%s"]}' % ("1 " * 99)}]
    assert tried(has_tags) is tried(is_short) is tried(passes, data) is None


def test_messages_are_put_where_prompts_are_messages():
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]

    def last(completions, answer, **_):
        texts = [messages[-1]["content"] for messages in completions]
        return [float(pair[0] == pair[1]) for pair in zip(texts, answer, strict=True)]

    made = tried(last, rows)
    assert made.counts["gold"] == (6, 6, 0)
    assert made.findings == []


def test_one_of_several_right_answers_is_not_wrong():
    rows = [{**row, "answer": [row["answer"], "7", "27"]} for row in ROWS]
    made = tried(each(lambda text, golds: text in golds), rows)
    assert made.counts["gold"] == (6, 6, 0)
    assert made.findings == []


def test_it_ends_in_time():
    def slow(completions, answer, **_):
        time.sleep(0.02)
        return [float(pair[0] == pair[1]) for pair in zip(completions, answer, strict=True)]

    made = audit(Reward(name="slow", function=slow), placed(ROWS), seconds=0.0)
    assert made.untried == "there was no time to try more"
    assert [*made.counts] == ["gold"]


@pytest.mark.parametrize(
    ("value", "digit", "half"),
    [
        ("42", "43", "4"),
        (42, 43, 4),
        (["19"], ["10"], ["1"]),
        ("no", None, "n"),
        ({"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": 1}),
        (["1", "2"], ["2", "3"], None),
        (True, None, None),
        (None, None, None),
    ],
)
def test_mutants_keep_the_type(value, digit, half):
    assert (changed_digit(value), prefix(value)) == (digit, half)


@pytest.mark.parametrize("text", ["x = 5", "sin(2)", "4", "\\frac{1}{2}", "no\\d", "f(x) = 2"])
def test_answers_are_no_programs(text):
    assert attacks.program_in(text) is None


RUNNERS = """
import json, subprocess, sys, tempfile
from pathlib import Path


def verdicts(completions, tests, **_):
    values = []
    for text, code in zip(completions, tests, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            report = "import json; json.dump({'passed': True}, open('result.json', 'w'))"
            program = chr(10).join([text, code, report])
            subprocess.run([sys.executable, "-ISc", program], cwd=folder, capture_output=True)
            path = Path(folder, "result.json")
            values.append(float(path.exists() and json.loads(path.read_text())["passed"]))
    return values


def passes(completions, tests, **_):
    values = []
    for text, code in zip(completions, tests, strict=True):
        try:
            names = {}
            exec(text, names)
            exec(code, names)
            values.append(1.0)
        except Exception:
            values.append(0.0)
    return values
"""


@pytest.mark.slow
def test_programs_that_cheat_are_put_in_a_process_of_their_own(tmp_path, monkeypatch):
    (tmp_path / "runners.py").write_text(RUNNERS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    import runners

    found = {each.kind: each for each in tried(runners.passes, CODE).findings}
    assert found.keys() == {"a program that exits", "a program that overrides equality"}
    assert "SystemExit" in found["a program that exits"].sentence
    assert found["a program that overrides equality"].value.number == 1
    found = {each.kind: each for each in tried(runners.verdicts, CODE).findings}
    assert found["a program that writes a result file"].value.number == 1
    assert sorted(path.name for path in Path.cwd().glob("*.*")) == ["runners.py"]
    del sys.modules["runners"]


@pytest.mark.parametrize(
    ("files", "is_running"),
    [
        ({"own": "def r(completions): return [eval(t) for t in completions]"}, True),
        (
            {"own": "import helps\ndef r(c): return helps.run(c)", "helps": "def run(c): exec(c)"},
            True,
        ),
        (
            {
                "own": "from helps.a import a\nclass r:\n    def __call__(self, c): return a(c)",
                "helps.a": "from helps.b import b\ndef a(c): return b(c)",
                "helps.b": "import os\ndef b(c): return os.popen(c)",
            },
            True,
        ),
        (
            {"own": "import re\ndef r(c): return [re.compile(text) for text in c]"},
            False,
        ),
        ({"own": "def r(model): return model.eval()"}, False),
    ],
)
def test_a_reward_that_runs_code_is_recognised_by_what_it_calls(
    tmp_path, monkeypatch, files, is_running
):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "helps").mkdir()
    for name, text in files.items():
        (tmp_path / f"{name.replace('.', '/')}.py").write_text(text)
    for name in ("own", *files):
        monkeypatch.delitem(sys.modules, name.partition(".")[0], raising=False)
        monkeypatch.delitem(sys.modules, name, raising=False)
    own = __import__("own").r
    own = own() if isinstance(own, type) else own
    assert attacks.runs_code(Reward(name="r", function=own)) is bool(is_running)
    for name in [each for each in sys.modules if each.partition(".")[0] in ("own", "helps")]:
        del sys.modules[name]
