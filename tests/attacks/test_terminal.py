"""What a terminal shows of others' words: rows, completions, tools, agents, rewards, files."""

import re

import pytest
import yaml
from tests.attacks import projects
from tests.command_line import call

PROMISE = "Words of others do nothing to a terminal"
HOSTILE = "1 + 1 = \x1b[2J\x1b]0;title\x07\x1b]52;c;cHduZWQ=\x1b\\\x9b31m\r\x08\x7f\t!"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tabs and ends of lines."""
PARTS = f"""\
HOSTILE = {HOSTILE!r}

def agent():
    raise RuntimeError(HOSTILE)

def failing(completions):
    raise OSError(HOSTILE)

def broken(completions):
    raise ValueError(HOSTILE)

def odd(completions):
    return [HOSTILE] * len(completions)

class Told:
    def close(self):
        raise RuntimeError(HOSTILE)

    def __call__(self, completions):
        return [1.0] * len(completions)

told = Told()
"""


CALLS = {
    "check": ["check", "run.yaml"],
    "a reward that fails": ["check", "run.yaml", "rewards=[parts:broken]"],
    "its traceback": ["check", "run.yaml", "rewards=[parts:broken]", "--traceback"],
    "what a reward returns": ["check", "run.yaml", "rewards=[parts:odd]"],
    "a reward that is skipped": [
        *("train", "run.yaml", "output=skipped", "train.steps=3"),
        "rewards=[{name: 'parts:failing', on_error: skip}]",
    ],
    "a reward that cannot be closed": ["train", "run.yaml", "output=told", "rewards=[parts:told]"],
    "an agent that fails": [
        *("train", "run.yaml", "output=agent", "environment={name: agent, run: 'parts:agent'}"),
    ],
    "sample a text": ["sample", "told", HOSTILE],
    "a name of an option": ["check", "run.yaml", f"{HOSTILE}=1"],
    "a configuration": ["check", "hostile.yaml"],
    "a ported file": ["port", "trl", "hostile.yaml"],
}


@pytest.mark.attack(PROMISE, "control characters in what is printed of rows, parts and files")
def test_no_control_character_is_printed(tmp_path, monkeypatch, tries):
    home = projects.make(tmp_path / "own", steps=1)
    config = yaml.safe_load((home / "run.yaml").read_text())
    config["prompts"] = {
        "name": "rows",
        "rows": [{"prompt": HOSTILE, "answer": HOSTILE, "kind": HOSTILE}],
    }
    config["evaluation"] = {"prompts": 0}
    (home / "run.yaml").write_text(yaml.safe_dump(config))
    (home / "parts.py").write_text(PARTS)
    (home / "hostile.yaml").write_text(yaml.safe_dump({HOSTILE: 1, "learning_rate": HOSTILE}))
    monkeypatch.chdir(home)
    monkeypatch.setattr("transformers.utils.logging._tqdm_active", False)
    shown = {name: call(*arguments).output for name, arguments in CALLS.items()}
    raw = {name: CONTROL.findall(text) for name, text in shown.items()}
    assert {name: characters for name, characters in raw.items() if characters} == {}
    assert {name for name, text in shown.items() if r"\x1b[2J" not in text} == set()
    tries(len(CALLS))
