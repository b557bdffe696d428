""".ci/compare.py: what it says of two runs, and its settings of the examples."""

import json
import math
import runpy
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from groupwise.config.load import load_config

ROOT = Path(__file__).parents[1]
compare = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "compare.py")))
NOT_COMPARED = {
    "propositions": "it needs Coq",
    "smollm": "its model is fetched",
    "smollm_code": "its model is fetched",
    "smollm_repair": "its model is fetched",
    "smollm_tools": "its model is fetched",
    "word_game_openenv": "OpenEnv needs an environment of its own",
}


def write(run: Path, *rows: object) -> None:
    run.parent.mkdir(parents=True, exist_ok=True)
    run.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def written(run: Path, number: float) -> Path:
    """A small run; what changes from run to run depends on the number."""
    step = {
        "step": 1,
        "loss": math.nan,
        "a/kl": 0.5,
        "a/time/update": number,
        "time/sample": number,
    }
    write(run / "metrics.jsonl", step | {"decisions_per_second": number, "memory/host": number})
    write(run / "result.json", {"before": {"reward": 0.5}, "seconds": number})
    write(run / "run.json", {"folder": str(run)})
    extra = {"turns": 2, "tool_seconds": number}
    write(run / "samples" / "training.jsonl", {"step": 1, "right": True, "extra": extra})
    write(run / "samples" / "before.jsonl", {"completion": "It is 12."}, {"completion": "No."})
    (run / "samples" / "before").mkdir()
    (run / "samples" / "before" / "0.png").write_bytes(b"picture")
    for file in ("model/model.safetensors", "checkpoints/step_1/optimizer.safetensors"):
        (run / file).parent.mkdir(parents=True)
        tensors = {"a": torch.ones(2), "b": torch.ones(3, dtype=torch.bfloat16)}
        save_file(tensors, run / file, {"time": str(number)})
    return run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path / "base", 1.0), written(tmp_path / "head", 2.0)


def differences(runs: tuple[Path, Path]) -> list[str]:
    return [*compare.differences(*map(compare.values, runs))]


def test_runs_that_differ_by_time_and_memory_are_equal(runs: tuple[Path, Path]) -> None:
    assert differences(runs) == []
    names = [name for own in compare.values(runs[0]).values() for name in own]
    assert len(names) == 14


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        ("metrics.jsonl", '"a/kl": 0.5', '"a/kl": 0.25', "line 1, step 1, a/kl: 0.5 -> 0.25"),
        ("metrics.jsonl", ', "a/kl": 0.5', "", "line 1, step 1, a/kl: 0.5 -> nothing"),
        ("metrics.jsonl", "NaN", "0.0", "line 1, step 1, loss: NaN -> 0.0"),
        ("result.json", "0.5", "0", "before/reward: 0.5 -> 0"),
        ("samples/training.jsonl", "true", "1", "line 1, step 1, right: true -> 1"),
        ("samples/training.jsonl", ": 2,", ": 3,", "line 1, step 1, extra/turns: 2 -> 3"),
        ("samples/before.jsonl", "12", "13", 'line 1, completion: "It is 12." -> "It is 13."'),
        (
            "samples/before.jsonl",
            '{"completion": "No."}',
            "",
            'line 2, completion: "No." -> nothing',
        ),
    ],
)
def test_a_value_that_differs_is_named_with_both_sides(
    runs: tuple[Path, Path], file: str, old: str, new: str, line: str
) -> None:
    text = (runs[1] / file).read_text()
    assert text.count(old) == 1
    (runs[1] / file).write_text(text.replace(old, new))
    assert differences(runs) == [f"{file}, {line}"]


@pytest.mark.parametrize("file", ["model/model", "checkpoints/step_1/optimizer"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_the_last_bit_of_a_tensor_counts(runs: tuple[Path, Path], file: str, name: str) -> None:
    path = runs[1] / f"{file}.safetensors"
    tensors = load_file(path)
    tensors[name][-1] = torch.nextafter(
        tensors[name][-1], torch.tensor(2, dtype=tensors[name].dtype)
    )
    save_file(tensors, path)
    (line,) = differences(runs)
    assert line.startswith(f"{file}.safetensors, {name}: {tensors[name].dtype} ")


def test_a_type_a_picture_and_a_file_that_is_missing_count(runs: tuple[Path, Path]) -> None:
    weights = runs[1] / "model" / "model.safetensors"
    save_file(load_file(weights) | {"a": torch.ones(2, dtype=torch.int32)}, weights)
    (runs[1] / "samples" / "before" / "0.png").write_bytes(b"another")
    (runs[1] / "samples" / "before" / "1.png").write_bytes(b"new")
    (runs[0] / "metrics.jsonl").rename(runs[0] / "metrics.txt")
    lines = [line.partition(":")[0] for line in differences(runs)]
    assert lines == [
        "samples/before/0.png, bytes",
        "model/model.safetensors, a",
        "metrics.jsonl",
        "samples/before/1.png",
    ]


def test_a_long_value_is_cut_around_what_differs() -> None:
    before, after = "a" * 300 + "b" + "c" * 300, "a" * 300 + "d" + "c" * 300
    left, right = compare.change(before, after).split(" -> ")
    assert ("b" in left, "d" in right) == (True, True)
    assert max(len(left), len(right)) <= compare.WIDTH


def test_every_example_is_compared_and_takes_its_settings() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.yaml")}
    assert files - NOT_COMPARED.keys() == compare.EXAMPLES.keys() - compare.FILES.keys()
    for name, settings in compare.EXAMPLES.items():
        file = ROOT / "examples" / compare.FILES.get(name, f"{name}.yaml")
        load_config(file, [*settings, "train.steps=3"])


def test_a_checkout_is_of_the_working_tree_and_has_its_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "repository"
    home.mkdir()
    monkeypatch.setitem(compare.tree.__globals__, "ROOT", home)

    def git(*arguments: str) -> str:
        author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        command = ["git", *author, *arguments]
        return subprocess.run(command, cwd=home, check=True, capture_output=True, text=True).stdout

    (home / "pyproject.toml").write_text(
        '[project]\nname = "some-parts"\n[project.entry-points.groupwise]\nparts = "parts.plugin"\n'
        '[tool.hatch.build]\ndev-mode-dirs = ["core"]\n'
    )
    (home / ".gitignore").write_text("runs/\n")
    (home / "file.txt").write_text("before")
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "All")
    (home / "file.txt").write_text("after")
    (home / "new.txt").write_text("new")
    (home / "runs").mkdir()
    (home / "runs" / "large.txt").write_text("ignored")
    state = git("status", "--porcelain")
    base, head = tmp_path / "base", tmp_path / "head"
    compare.checkout("HEAD", base)
    compare.checkout(None, head)
    assert git("status", "--porcelain") == state
    assert (base / "file.txt").read_text() == "before"
    assert (head / "file.txt").read_text() == "after"
    assert not (base / "new.txt").exists()
    assert (head / "new.txt").exists()
    assert not (head / "runs").exists()
    assert compare.paths(head)[1:] == [str(head / "core")]
    (installed,) = distributions(path=compare.paths(head))
    assert [(each.group, each.name, each.value) for each in installed.entry_points] == [
        ("groupwise", "parts", "parts.plugin")
    ]
