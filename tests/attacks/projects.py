"""A small project that trains in a fraction of a second, and what its runs come out as."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file

BASE = Path(__file__).parents[2] / "examples" / "arithmetic" / "base"
REWARD = '''\
def letters(completions, **columns):
    """Something that differs from completion to completion."""
    return [float(sum(map(ord, text)) % 7) for text in completions]
'''
OF_TIME = ("time/", "reward_time", "decisions_per")


def make(home: Path, **train: Any) -> Path:
    """A folder with a configuration, `run.yaml`, whose run lies in `run`."""
    home.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]
    config = {
        "output": "run",
        "policy": {"name": "language_model", "model": str(BASE), "max_new_tokens": 3},
        "prompts": {"name": "rows", "rows": rows, "held_out": 0.3},
        "rewards": ["letters:letters"],
        "train": {"steps": 3, "groups_per_step": 1, "group_size": 4, "checkpoint_every": 1} | train,
        "evaluation": {"prompts": 1, "greedy": False},
    }
    (home / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (home / "letters.py").write_text(REWARD)
    return home


def copied(begun: Path, home: Path) -> Path:
    """A project with its run in another folder, as if the run had been begun there."""
    shutil.copytree(begun, home, symlinks=True, dirs_exist_ok=True)
    facts = home / "run" / "run.json"
    facts.write_text(facts.read_text().replace(str(begun), str(home)))
    return home


def outcome(run: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The metrics of every step without times, and the weights it ended with."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if not k.startswith(OF_TIME)} for line in lines]
    weights = load_file(run / "model" / "model.safetensors")
    return metrics, {name: tensor.tolist() for name, tensor in weights.items()}
