"""Columns of an environment in evaluations and samples, and those that are refused."""

import json
import statistics
from fractions import Fraction

import numpy as np
import pytest

import groupwise
from groupwise import Environment
from groupwise.kit.errors import UserError
from groupwise.storage.samples import read_samples, write_samples


class Drafts(Environment):
    """As many drafts as the row says; each turn has a reward."""

    value = staticmethod(lambda row, turns: turns)

    def columns(self, labels):
        return ["turns", "rare"]

    def logged(self, labels):
        return ["turns", "rare"]

    async def play(self, row, players):
        (player,) = players.values()
        turns = row["id"] % 3 + 1
        for turn in range(turns):
            await player({**row, "prompt": f"draft {turn}"})
        rare = None if turns == 1 else row["id"] / 2
        return {"turns": self.value(row, turns), "rare": rare, "turn_rewards": [0.5] * turns}


def train(lab, folder, environment):
    groupwise.train(
        policy=lab.Tabular(),
        environment=environment,
        prompts={"name": lab.rows(), "held_out": 0.5},
        rewards=[lab.ones],
        train={"steps": 1, "groups_per_step": 2, "group_size": 2},
        evaluation={"prompts": 3, "samples": 2},
        output=folder,
        reports=[],
        quiet=True,
    )
    return json.loads((folder / "result.json").read_text())["after"]


def test_evaluations_have_the_means_of_columns(lab, tmp_path):
    metrics = train(lab, tmp_path / "run", Drafts())
    samples = read_samples(tmp_path / "run" / "samples" / "after.jsonl")
    sampled = [sample["extra"] for sample in samples if not sample["greedy"]]
    assert {extra["rare"] is None for extra in sampled} == {True, False}
    means = {
        name: statistics.fmean(extra[name] for extra in sampled if extra[name] is not None)
        for name in ("turns", "rare")
    }
    assert metrics["environment/turns"] == pytest.approx(means["turns"], rel=1e-4)
    assert metrics["environment/rare"] == pytest.approx(means["rare"], rel=1e-4)


def test_samples_have_the_rewards_of_the_turns_of_their_completion(lab, tmp_path):
    train(lab, tmp_path / "run", Drafts())
    samples = read_samples(tmp_path / "run" / "samples" / "after.jsonl")
    assert {tuple(sample["turn_rewards"]) for sample in samples} == {(0.5,)}


def test_a_column_that_is_logged_must_be_a_number(lab, tmp_path):
    environment = Drafts()
    environment.value = lambda row, turns: str(turns)
    with pytest.raises(
        UserError, match=r"must return a number or None for it, received '\d' \(str"
    ):
        train(lab, tmp_path / "run", environment)


@pytest.mark.parametrize(
    ("kind", "native"), [(np.int64, int), (np.float32, float), (np.bool_, bool), (Fraction, float)]
)
def test_a_column_that_is_logged_may_be_any_kind_of_number(lab, tmp_path, kind, native):
    environment = Drafts()
    environment.value = lambda row, turns: kind(turns)
    metrics = train(lab, tmp_path / "run", environment)
    samples = read_samples(tmp_path / "run" / "samples" / "after.jsonl")
    values = [own["extra"]["turns"] for own in samples]
    assert {type(value) for value in values} == {native}
    drawn = [own["extra"]["turns"] for own in samples if not own["greedy"]]
    assert metrics["environment/turns"] == pytest.approx(statistics.fmean(drawn), rel=1e-4)


def test_a_column_that_is_logged_must_be_declared(lab, tmp_path):
    environment = Drafts()
    environment.columns = lambda labels: ["turns"]
    with pytest.raises(UserError, match="its `logged` names 'rare', which is not among its `col"):
        train(lab, tmp_path / "run", environment)


def test_samples_keep_messages_with_calls_and_turn_what_is_no_json_into_text(tmp_path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": [1, {"b": None}]}}}
    odd = {"role": "tool", "content": {"at": tmp_path}}
    completion = [{"role": "assistant", "content": "", "tool_calls": [call]}, odd]
    path = tmp_path / "samples" / "after.jsonl"
    write_samples(path, [{"completion": completion}])
    (sample,) = read_samples(path)
    assert sample["completion"] == [completion[0], {**odd, "content": {"at": str(tmp_path)}}]
