"""`examples/repair.yaml`: its repositories, and the episodes that its base model was trained on."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_examples import EXAMPLES

from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.run.train import train_from_config
from groupwise_agents.repository import Files
from groupwise_agents.tool import ToolError
from groupwise_code.repository_tests import RepositoryTests
from groupwise_sandbox.sandbox import Sandbox
from groupwise_sandbox.shell import Setting


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(total_memory=8 << 30) as box:
        if reason := box.shell_refusal:
            pytest.skip(reason)
        yield box


@pytest.fixture(scope="module")
def reward() -> Iterator[RepositoryTests]:
    try:
        made = RepositoryTests(RepositoryTests.Config(timeout=2))
    except UserError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_a_repository_passes_its_tests_once_its_fault_is_repaired(reward):
    from repair.repositories import Repositories, Repository

    for number, row in zip(range(6), Repositories(), strict=False):
        reward.check_row(row)
        own = Repository.drawn(random.Random(number))
        path = f"{own.module}.py"
        repaired = {path: row["files"][path].replace(own.wrong.line, own.right.line)}
        columns = {name: [each] * 2 for name, each in row.items() if name != "prompt"}
        edited = [repaired, {}]
        assert reward([row["prompt"]] * 2, ["done"] * 2, edited=edited, **columns) == [1.0, 0.0]


def test_the_fault_is_a_body_that_occurs_once_in_its_file():
    from repair.repositories import Repository

    for number in range(300):
        own = Repository.drawn(random.Random(number))
        text = own.files[f"{own.module}.py"]
        assert text.count(own.wrong.body) == 1
        assert own.wrong.body != own.right.body


@pytest.mark.parametrize("looks", [0.0, 1.0])
def test_the_tools_answer_as_in_the_episodes_of_the_base_model(box, looks):
    """Every call of an episode is made: the model does not meet answers that it never saw."""
    from repair.make_base import Habits, episode
    from repair.repositories import Repository

    habits = Habits(looks=looks, rights=0.0, runs=1.0)
    for number in range(3):
        own = Repository.drawn(random.Random(number))
        _, *messages = episode(own, random.Random(number), habits)
        encoded = {name: text.encode() for name, text in own.files.items()}
        with box.shell(Setting(files=encoded)) as shell:
            tools = Files(shell)
            for asked, answer in zip(messages[::2], messages[1::2], strict=False):
                function = asked["tool_calls"][0]["function"]
                try:
                    said = getattr(tools, function["name"])(**function["arguments"])
                except ToolError as error:
                    said = f"error: {function['name']}: {error}"
                assert said == answer["content"]


def trained(run: Path, *overrides: str):
    few = ("evaluation.prompts=20", "train.groups_per_step=4", "train.group_size=4")
    loaded = load_config(EXAMPLES / "repair.yaml", [*few, *overrides, f"output={run}"])
    return train_from_config(loaded, quiet=True)


@pytest.mark.slow
def test_two_steps_from_the_shipped_model(box, tmp_path):
    result = trained(tmp_path / "run", "train.steps=2")
    assert result.steps == 2
    assert 0 < result.before["accuracy"] < 0.7
    lines = (tmp_path / "run" / "samples" / "before.jsonl").read_text().splitlines()
    right = [own for own in map(json.loads, lines) if own["right"]]
    assert all(own["shown"]["changes"].startswith("--- ") for own in right)
