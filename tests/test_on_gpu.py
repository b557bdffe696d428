"""The script for what only a GPU can show: its rows go on where a call ended; its page is right."""

import importlib
import json
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"
MODULES = (
    "curve_trl",
    "gpu_page",
    "gpu_rows",
    "on_gpu",
    "precisions",
    "race",
    "word_sums",
    "works",
)


@pytest.fixture
def scripts(monkeypatch):
    """The modules of the script, by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def setup(scripts, tmp_path):
    return scripts.gpu_rows.Setup(
        out=tmp_path,
        device="cpu",
        toy=True,
        smollm=tmp_path,
        task=scripts.gpu_rows.TASKS[0],
        curve_minutes=20,
    )


@pytest.fixture
def row(scripts):
    def make(name, code="print('{\"answer\": 1}')", **settings):
        command, settings = ["-c", code], {"minutes": 1, **settings}
        return scripts.gpu_rows.Row(piece="piece", name=name, command=command, **settings)

    return make


def results(setup):
    lines = (setup.out / "results.jsonl").read_text("utf-8").splitlines()
    return {line["row"]: line for line in map(json.loads, lines)}


def test_a_row_without_figures_says_why_and_the_others_go_on(scripts, setup, row):
    rows = [
        row("broken", "import sys; sys.exit('no such model')"),
        row("silent", "pass"),
        row("slow", "import time; time.sleep(600)", minutes=0.001),
        row("without a package", needs=("json", "no_such_package")),
        row("blocked", blocked="there is no algorithm"),
        row("good", "print('a note'); print('{\"answer\": 2}')"),
    ]
    assert scripts.on_gpu.measure_all(rows, setup, None, retry=False) == 0
    lines = results(setup)
    problems = {name: line["problem"] for name, line in lines.items() if "problem" in line}
    assert problems == {
        "broken": "no such model",
        "silent": "exit code 0",
        "slow": "stopped after 0 s",
        "without a package": "not installed: no_such_package",
        "blocked": "there is no algorithm",
    }
    assert lines["good"]["answer"] == 2


def test_a_repeated_call_measures_what_is_left(scripts, setup, row, capsys):
    def call(*, retry=False):
        rows = [row("first"), row("broken", "1 / 0"), row("long", minutes=9)]
        left = scripts.on_gpu.measure_all(rows, setup, 5, retry=retry)
        return left, [x.split(": ")[1].split()[0] for x in capsys.readouterr().out.splitlines()]

    assert call() == (1, ["first", "broken"])
    assert call() == (0, ["long"])
    assert call() == (0, [])
    assert call(retry=True) == (0, ["broken"])


@pytest.mark.slow
def test_the_machine_is_measured_and_named_on_the_page(scripts, setup):
    arguments = ["machine", "--device", "cpu", "--toy", "--out", str(setup.out)]
    scripts.on_gpu.main(arguments)
    assert results(setup)["machine"]["bandwidth"] > 0
    page = (setup.out / "page.md").read_text("utf-8")
    assert "torch" in page
    assert "no figure on this page counts" in page


def test_every_row_has_a_script_and_less_than_ten_minutes(scripts, setup):
    for toy in (True, False):
        planned = scripts.gpu_rows.rows(
            SimpleNamespace(**{**vars(setup), "toy": toy, "work": setup.work}), []
        )
        assert {row.piece for row in planned} == set(scripts.gpu_rows.PIECES)
        assert all(Path(row.command[0]).is_file() for row in planned if not row.blocked)
        assert max(row.minutes for row in planned) < 10
    sides = [row.name for row in planned if row.piece == "curve"]
    assert sides == [
        f"{side}, to minute {x}" for x in ("6.67", "13.3", "20") for side in ("trl", "ours")
    ]


def test_the_page_answers_what_counts(scripts, tmp_path):
    write(tmp_path, "results.jsonl", RESULTS)
    for side, rise in (("trl", 0.001), ("ours", 0.002)):
        write(tmp_path, f"curve_{side}.jsonl", points(rise))
    scripts.gpu_page.write(tmp_path)
    page = (tmp_path / "page.md").read_text("utf-8")
    for line in (
        "A GPU, 16 CPU cores; torch 2.11, trl absent; a copy reads and writes 2.00 TB/s.",
        "| `gpu` tests | 89 passed, 1 failed | 0 failed |",
        "| a step of L, against TRL's faster setting | 3 times as fast | at least 3: reached |",
        "against reading weights and cache once | 4 times | at most 1.3: **missed** |",
        "| launches for a token | 12.5 | at most 30: reached |",
        "| accuracy after 17 minutes | TRL 0.10, Groupwise 0.20 |  |",
        "| memory of image models, estimated | 0.75 to 1.00 times the peak |  |",
        "- `tests/a.py::test_b`",
        "| ours | 4.00 | 2.00 | 16,000 | 2.00 | 4.0 | 30.0 |",
        "| window | 3.00 | 2.00 | 4.00 | 3.00 | 0.75 | 8.00 | 8.00 | 1.00 |",
        "| shapes, fp16 | 1.2 | 0.1 | - | - | 6.55e+04 | - | - | 1 | 2 |",
        "- images, without a path: there is no algorithm",
    ):
        assert line in page, page
    assert "nothing" not in page
    assert (tmp_path / "curve.svg").read_text("utf-8").count("<polyline") == 2


def test_a_page_of_nothing_says_nothing(scripts, tmp_path):
    scripts.gpu_page.write(tmp_path)
    page = (tmp_path / "page.md").read_text("utf-8")
    assert "|" not in page
    assert "##" not in page


def test_a_curve_goes_on_from_its_checkpoint(scripts, tmp_path):
    path = tmp_path / "points.jsonl"
    write(tmp_path, path.name, points(0.001))
    curve = scripts.curve_trl.Points(path, "cpu")
    curve.begin(7)
    assert curve.add(8, 0.5, 100.0) >= 70.0
    steps = [json.loads(line)["step"] for line in path.read_text("utf-8").splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]


def test_word_sums_are_judged_by_their_last_number(scripts):
    sums = scripts.word_sums
    assert sums.word_sums(5) == sums.word_sums(5)
    texts = ("It is 12.", "12, no 1,300", "none", "13 or 12")
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert sums.right(completions, ["12", "1300", "12", "12"]) == [1.0, 1.0, 0.0, 1.0]


def test_precisions_are_means_and_the_largest_mismatch(scripts):
    times = {"time/sample": 1.0, "time/update": 2.0, "decisions_per_second": 3.0}
    first = {"mismatch/mean": 0.1, "mismatch/max": 0.5, "overflows": 1, **times}
    second = {
        "mismatch/mean": 0.3,
        "mismatch/max": 0.2,
        "overflows": 1,
        **times,
        "time/sample": 4.0,
    }
    summary = scripts.precisions.summary([first, second])
    assert summary["mismatch/mean"] == pytest.approx(0.2)
    assert summary["ratio"] == pytest.approx(1.6487, abs=1e-4)
    assert (summary["overflows"], summary["time/sample"]) == (2, 4.0)


def test_plugins_are_registered_without_being_installed(scripts, tmp_path):
    folder = scripts.on_gpu.registered(tmp_path / "registered")
    (installed,) = distributions(path=[str(folder)])
    names = {point.name for point in installed.entry_points if point.group == "groupwise"}
    assert {"groupwise", "language_model", "flow"} <= names


def write(folder, name, lines):
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def points(rise):
    """100 steps of ten seconds, whose accuracy rises."""
    return [
        {"step": n, "seconds": 10.0 * n, "accuracy": rise * n, "tokens": 100.0, "peak": 2 * 10**9}
        for n in range(1, 101)
    ]


def side(name, seconds, sampling):
    measured = {"seconds": [99.0, *[seconds] * 2], "sampling": [99.0, *[sampling] * 2]}
    size = {"length": 1000, "tokens": 64_000, "peak": 30.0}
    return {"piece": "decoding", "row": name, **measured, **size}


RESULTS = [
    {
        "piece": "machine",
        "row": "machine",
        "device": "A GPU",
        "cores": 16,
        "versions": {"torch": "2.11", "trl": None},
        "bandwidth": 2e12,
    },
    {"piece": "tests", "row": "a", "passed": 60, "failed": 1, "skipped": 0}
    | {"names": ["tests/a.py::test_b"]},
    {"piece": "tests", "row": "b", "passed": 29, "failed": 0, "skipped": 2, "names": []},
    side("trl", 18.0, 17.0),
    side("trl in bf16", 12.0, 11.0),
    {"piece": "decoding", "row": "ours", "problem": "nothing, then measured again"},
    side("ours", 4.0, 2.0),
    {
        "piece": "decoding",
        "row": "launches",
        "launches": 12.5,
        "kernels": 900.0,
        "copies": 1.0,
        "waits": 0.0625,
        "weights": 800_000_000,
        "cache": 200_000_000,
    },
    {
        "piece": "images",
        "row": "window",
        "sampling seconds": 3.0,
        "sampling peak": 4 * 2**30,
        "sampling estimate": 3 * 2**30,
        "update seconds": 2.0,
        "update peak": 8 * 2**30,
        "update estimate": 8 * 2**30,
    },
    {"piece": "images", "row": "without a path", "problem": "there is no algorithm"},
    {
        "piece": "precisions",
        "row": "shapes, fp16",
        "ratio": 1.2,
        "mismatch/mean": 0.1,
        "loss_scale": 65536.0,
        "time/sample": 1.0,
        "time/update": 2.0,
    },
]
