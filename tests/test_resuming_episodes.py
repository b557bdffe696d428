"""A run that is killed in the middle of an episode plays it again, exactly or with a note."""

import json
import re
import shutil

import pytest
import yaml
from tests import tiny_model
from tests.core.launching import Job

TALK = '''
import asyncio, os, random, signal
from pathlib import Path

from groupwise import Environment

KILL = int(os.environ.get("KILL_IN_EPISODE", 0))  # the number of an episode, from 1
BEGUN = []


class Talk(Environment):
    """Three turns; after each an answer by the seed, and a wait of any length."""

    def columns(self, labels):
        return ["rolls"]

    async def play(self, row, players, seed=0):
        (player,) = players.values()
        BEGUN.append(row)
        is_last = len(BEGUN) == KILL
        dice = random.Random(seed)
        text, rolls = row["prompt"], []
        for turn in range(3):
            text += (await player(text, limit=4)).text
            if is_last and turn == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(random.random() * 0.002)
            rolls.append(dice.randrange(10))
            text += f" {rolls[-1]} "
        return {"rolls": sum(rolls)}


def rolled(completions, rolls):
    return [own + len(text) % 7 for own, text in zip(rolls, completions, strict=True)]
'''
REPAIR = '''
import os, signal

from groupwise_agents.repository import Repository

KILL = int(os.environ.get("KILL_IN_EPISODE", 0))
BEGUN = []


class Killing:
    """A player whose process is killed as it has said something."""

    def __init__(self, player):
        self.player = player

    async def __call__(self, context, **options):
        await self.player(context, **options)
        os.kill(os.getpid(), signal.SIGKILL)


class Talk(Repository):
    async def play(self, row, players):
        BEGUN.append(row)
        if len(BEGUN) == KILL:
            players = {label: Killing(player) for label, player in players.items()}
        return await super().play(row, players)


def rolled(completions, calls, edited):
    return [
        None if made is None else made + len(str(text)) % 7 + len(changed)
        for text, made, changed in zip(completions, calls, edited, strict=True)
    ]
'''
"""Calls of a model that knows another tool, run by bash, which writes them down."""
IN_STEP_4 = 2 + 3 * 8 + 3
"""The third episode of the fourth step, after 2 of the first evaluation and 8 of each step; the
third step is lost with it, since the last checkpoint is of the second."""


def project(folder, code=TALK, question="{} + 1 =", **changes):
    """A folder with a configuration of four steps, and the environment.

    question: for a number; changes: of the configuration.
    """
    folder.mkdir()
    (folder / "talk.py").write_text(code)
    rows = [{"prompt": question.format(n), "files": {"log": f"{n}\n"}} for n in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = {"name": "language_model", "model": str(tiny_model.folder()), "max_new_tokens": 40}
    config = {
        "policy": model,
        "environment": "talk:Talk",
        "prompts": {"name": "dataset", "path": "rows.jsonl", "held_out": 0.3},
        "rewards": [{"name": "talk:rolled"}],
        "train": {"steps": 4, "groups_per_step": 2, "group_size": 4, "checkpoint_every": 2},
        "evaluation": {"prompts": 2, "samples": 1, "greedy": False},
        "output": "run",
        "reports": [],
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config | changes))
    return folder


def train(folder, monkeypatch, *arguments, kill=0):
    """The exit code and the output of a process that is killed in this episode."""
    monkeypatch.chdir(folder)
    environment = {"KILL_IN_EPISODE": str(kill)}
    command = ("-m", "groupwise", *arguments)
    imports = ["groupwise_llm.policy"]
    job = Job(*command, terminals=folder / "out", environment=environment, imports=imports)
    (code,), (text,) = job.end()
    return code, " ".join(text.split())


def outcome(folder):
    """Metrics without times, samples, and the weights of the last checkpoint."""
    run = folder / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("time/", "reward_time/", "decisions_per_second", "memory/")
    timed += ("environment/tool_seconds", "evaluation/environment/tool_seconds")
    metrics = [{n: v for n, v in line.items() if not n.startswith(timed)} for line in lines]
    samples = (run / "samples" / "after.jsonl").read_text()
    samples = re.sub(r'"tool_seconds": [\d.e-]+', "", samples)
    weights = (run / "checkpoints" / "step_4" / "weights.safetensors").read_bytes()
    return metrics, samples, weights


@pytest.mark.slow
def test_a_run_killed_in_an_episode_is_resumed_to_the_same_bits_or_says_that_it_is_not(
    tmp_path, monkeypatch
):
    whole, home = project(tmp_path / "whole"), project(tmp_path / "home")
    code, text = train(whole, monkeypatch, "train", "run.yaml")
    assert code == 0, text
    assert train(home, monkeypatch, "train", "run.yaml", kill=IN_STEP_4)[0] == -9
    lines = (home / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]
    killed = shutil.copytree(home, tmp_path / "killed")
    code, text = train(home, monkeypatch, "resume", "run")
    assert code == 0, text
    assert "went another way" not in text
    assert outcome(home) == outcome(whole)
    # The same, in the same folder, with other rolls; by chance, their mean could be the same.
    shutil.rmtree(home)
    killed.rename(home)
    (home / "talk.py").write_text(TALK.replace("Random(seed)", "Random(seed + 1)"))
    code, text = train(home, monkeypatch, "resume", "run")
    assert code == 0, text
    assert text.count("note: step 3 was made before the interruption, too, and went another") == 1


@pytest.mark.slow
def test_a_run_killed_while_a_shell_is_open_is_resumed_to_the_same_bits(tmp_path, monkeypatch):
    pytest.importorskip("groupwise_agents.repository")
    calls = {"format": "tags", "begin": "<tool_call>", "end": "</tool_call>"}
    model = {
        "name": "language_model",
        "model": str(tiny_model.BASE.parents[1] / "calculator" / "base"),
        "max_new_tokens": 100,
        "tool_calls": {**calls, "tool": "bash", "argument": "command"},
    }
    environment = {"name": "talk:Talk", "turns": 3, "tools": ["bash"]}
    whole, home = (
        project(tmp_path / name, REPAIR, "2{:02} * 45 =", policy=model, environment=environment)
        for name in ("whole", "home")
    )
    code, text = train(whole, monkeypatch, "train", "run.yaml")
    if "has no shell here" in text:
        pytest.skip("shells do not work here")
    assert code == 0, text
    assert train(home, monkeypatch, "train", "run.yaml", kill=IN_STEP_4)[0] == -9
    code, text = train(home, monkeypatch, "resume", "run")
    assert code == 0, text
    assert outcome(home) == outcome(whole)
    metrics, _, _ = outcome(home)
    assert max(line.get("environment/calls", 0) for line in metrics) > 0
