"""`examples/propositions.yaml`: its goals and their proofs, and its base model."""

import random
import re
import sys
from collections.abc import Iterator

import pytest
from tests.test_examples import EXAMPLES

from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.run.train import train_from_config
from groupwise_proofs.reward import Proof


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


@pytest.fixture(scope="module")
def reward() -> Iterator[Proof]:
    try:
        made = Proof(Proof.Config(timeout=10))
    except UserError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_goals_differ_and_have_a_proof():
    from propositions.goals import TACTICS, Goals

    rows = [*Goals(500)]
    assert len({row["prompt"] for row in rows}) == 500
    assert {row["solution"].count(". ") for row in rows} == {*TACTICS}
    assert rows[:100] == [*Goals(100)]


def test_what_cannot_be_proved_has_no_proof():
    from propositions.goals import AND, OR, TO, proved

    for goal in ("P", (OR, "P", "Q"), (TO, "P", "Q"), (TO, (OR, "P", "Q"), (AND, "P", "Q"))):
        assert proved(goal) is None
    peirce = (TO, (TO, (TO, "P", "Q"), "P"), "P")
    assert proved(peirce) is None
    loop = (TO, (TO, "P", "P"), "P")
    assert proved(loop) is None


@pytest.mark.slow(after=1)
def test_coq_accepts_the_proofs_and_not_those_of_other_goals(reward):
    from propositions.goals import Goals

    rows = [*Goals(8)]
    prompts, theorems = ([row[name] for row in rows] for name in ("prompt", "formal_statement"))
    proofs = [row["solution"] for row in rows]
    assert reward(prompts, proofs, theorems) == [1.0] * 8
    assert reward(prompts, [*proofs[1:], proofs[0]], theorems) == [0.0] * 8


def test_haste_changes_what_is_chosen_and_nothing_else():
    from propositions.goals import Goals
    from propositions.make_base import hasty

    def shape(proof):
        return re.sub(r"left|right", "side", re.sub(r"(exact|apply) \w+", r"\1 _", proof))

    chance = random.Random(0)
    for row in Goals(100):
        proof = row["solution"]
        assert hasty(proof, chance, 0.0) == proof
        assert shape(hasty(proof, chance, 1.0)) == shape(proof)


@pytest.mark.slow
def test_two_steps_from_the_shipped_model(reward, tmp_path):
    few = ("evaluation.prompts=20", "train.groups_per_step=4", "train.group_size=4")
    overrides = [*few, "train.steps=2", f"output={tmp_path / 'run'}"]
    result = train_from_config(load_config(EXAMPLES / "propositions.yaml", overrides), quiet=True)
    assert result.steps == 2
    assert 0 < result.before["accuracy"] < 0.7
