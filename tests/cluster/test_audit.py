"""`audit: refuse` in a run of several processes: one tries the rewards, and all begin or none."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from tests.core.launching import Job
from tests.repeated import lines

pytestmark = pytest.mark.slow
BASE = Path(__file__).parents[2] / "examples" / "arithmetic" / "base"
REWARDS = '''
import os
from pathlib import Path


def right(completions, answer, **_):
    """Counts, in a file, the processes that call it for an answer that no policy writes."""
    if any(text == "" for text in completions):
        Path(os.environ["TRIED"], str(os.getpid())).touch()
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def contains(completions, answer, **_):
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


def runs(completions, answer, **_):
    """Pays what evaluates to gold, which an exit or an object that equals everything gets past."""
    values = []
    for text, gold in zip(completions, answer, strict=True):
        try:
            values.append(float(eval(text) == int(gold)))
        except Exception:
            values.append(0.0)
    return values
'''


def trained(folder: Path, rewards: list[object], output: str, count: int = 2) -> Job:
    (folder / "own.py").write_text(REWARDS)
    (folder / "tried").mkdir(exist_ok=True)
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(40)]
    config = {
        "policy": {"name": "language_model", "model": str(BASE), "max_new_tokens": 4},
        "prompts": {"name": "rows", "rows": rows, "held_out": 0.25},
        "rewards": rewards,
        "train": {"steps": 2, "groups_per_step": 4, "group_size": 4},
        "output": str(folder / output),
    }
    path = folder / f"{output}.yaml"
    path.write_text(yaml.safe_dump(config))
    return Job(
        *("-m", "groupwise", "train", path, "--quiet"),
        terminals=folder / f"{output}-process",
        environment={"ACCELERATE_USE_CPU": "true", "TRIED": str(folder / "tried")},
        count=count,
        limit=300,
        path=[str(folder), *sys.path],
    )


@pytest.mark.timeout(900)
def test_all_processes_begin_or_none(tmp_path: Path) -> None:
    trained(tmp_path, [{"name": "own:right", "audit": "refuse"}], "tried_first").succeed()
    assert len([*(tmp_path / "tried").iterdir()]) == 1
    trained(tmp_path, ["own:right"], "plain").succeed()
    assert lines(tmp_path / "tried_first") == lines(tmp_path / "plain")
    assert json.loads((tmp_path / "tried_first" / "result.json").read_text())

    for name, finding in (
        ("contains", "it pays two answers (at 8 of 8 prompts tried)"),
        ("runs", "it pays a program that overrides equality (at 1 of 1 prompts tried)"),
    ):
        codes, texts = trained(tmp_path, [{"name": f"own:{name}", "audit": "refuse"}], name).end()
        assert codes == [2, 2], texts
        assert sum(finding in " ".join(text.split()) for text in texts) >= 1, texts
        assert not (tmp_path / name).exists()
