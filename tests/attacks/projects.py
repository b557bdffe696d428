"""A small project whose run takes a fraction of a second, and the outcome of such a run."""

import shutil
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file
from tests import repeated, tiny_model

BASE = Path(__file__).parents[2] / "examples" / "arithmetic" / "base"
"""A model of some megabytes."""
REWARD = '''\
def letters(completions, **columns):
    """A reward that differs between completions."""
    return [float(sum(map(ord, text)) % 7) for text in completions]


def shades(completions, **columns):
    """The same for pictures."""
    return [float(sum(picture.tobytes()) % 7) for picture in completions]
'''


def make(home: Path, *, model: Path | None = None, **train: Any) -> Path:
    """Writes a project: a folder with `run.yaml`, whose run is in `run`; model: the tiny one."""
    home.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]
    config = {
        "output": "run",
        "policy": {
            "name": "language_model",
            "model": str(model or tiny_model.folder()),
            "max_new_tokens": 3,
        },
        "prompts": {"name": "rows", "rows": rows, "held_out": 0.3},
        "rewards": ["letters:letters"],
        "train": {"steps": 3, "groups_per_step": 1, "group_size": 4, "checkpoint_every": 1} | train,
        "evaluation": {"prompts": 1, "greedy": False},
    }
    (home / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (home / "letters.py").write_text(REWARD)
    return home


def make_pictures(home: Path, model: Path) -> Path:
    """The same for images of the pipeline in this folder; three prompts, drawn in pairs, so that
    each is drawn beside different ones."""
    make(home, steps=5, groups_per_step=2, group_size=2)
    config = yaml.safe_load((home / "run.yaml").read_text())
    size = {"height": 16, "width": 16, "prompt_tokens": 12}
    steps = {"steps": 3, "evaluation_steps": 2, "guidance": 2.0}
    names = ("a", "big red", "two small")
    config |= {
        "policy": {"name": "flow", "model": str(model), **size, **steps},
        "prompts": {"name": "rows", "rows": [{"prompt": f"{name} cat"} for name in names]},
        "rewards": ["letters:shades"],
        "algorithm": "flow_grpo",
        "evaluation": {"prompts": 0},
    }
    config["prompts"]["held_out"] = 0.0
    (home / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return home


def copied(project: Path, home: Path) -> Path:
    """Copies a project with its run to another folder, as if the run had been started there."""
    shutil.copytree(project, home, symlinks=True, dirs_exist_ok=True)
    facts = home / "run" / "run.json"
    facts.write_text(facts.read_text().replace(str(project), str(home)))
    return home


def outcome(run: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The metrics of all steps without times, and the final weights."""
    metrics = repeated.lines(run)
    files = sorted((run / "model").rglob("*.safetensors"))
    weights = {path.parent.name: load_file(path) for path in files}
    assert weights
    return metrics, {
        f"{folder}/{name}": tensor.tolist()
        for folder, tensors in weights.items()
        for name, tensor in tensors.items()
    }
