"""What is counted of turns: against the sampler's and the environment's own books."""

import json
import random

import pytest
from tests.core.test_concurrent_draws import Turns

import groupwise
from groupwise import Environment, ToolCall


class Books(Turns):
    """Keeps the number of its turns, of calls parsed and of those that only look like one; a turn
    of "1..." is a call, "2..." looks like one. `damaged`: one in so many rollouts has another first
    symbol than was drawn, 0 for none."""

    damaged = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.rows, self.wrong = 0, 0

    def tool_calls(self, context):
        calls = [ToolCall("add"), ToolCall("add", fault="no number")]
        return (calls, None) if self._last(context).startswith("1") else ((), None)

    def resembles_call(self, text):
        return text.startswith("2")

    def _last(self, context):
        own = [str(s) for s, drawn in zip(context.symbols, context.drawn, strict=True) if drawn]
        return "".join(own)[-self.length(context) :]

    def length(self, context):
        flags = context.drawn[::-1]
        return flags.index(False) if False in flags else len(flags)

    def assemble(self, rows, contexts, *, groups=None):
        rollouts = super().assemble(rows, contexts, groups=groups)
        for row in range(len(rollouts)):
            self.rows += 1
            if self.damaged and self.rows % self.damaged == 0:
                symbols = rollouts.trajectory["symbols"]
                symbols[row, 0] = (symbols[row, 0] + 1) % self.policy.symbols
                self.wrong += 1
        return rollouts

    def holds(self, rollouts, turns):
        held = []
        for row, own in enumerate(turns):
            decided = rollouts.trajectory["symbols"][row][rollouts.mask[row]].tolist()
            starts = [sum(len(t.symbols) for t in own[:n]) for n in range(len(own))]
            held.append(
                [
                    tuple(decided[start : start + len(turn.symbols)]) == turn.symbols
                    for start, turn in zip(starts, own, strict=True)
                ]
            )
        return held


class Wanders(Environment):
    """One to three turns, of which some forget what was said, and some raise."""

    def __init__(self):
        self.books = {"turns": 0, "later": 0, "continued": 0, "raised": 0, "parsed": 0, "like": 0}

    async def play(self, row, players):
        (player,) = players.values()
        text, chance = row["prompt"], random.Random(row["id"])
        for turn in range(row["id"] % 3 + 1):
            continues = chance.random() < 0.6
            text = text if continues else f"forgotten {turn} "
            reply = await player(text, tools=[{"name": "add"}])
            self.books["turns"] += 1
            self.books["later"] += turn > 0
            self.books["continued"] += turn > 0 and continues
            self.books["parsed"] += reply.text.startswith("1")
            self.books["like"] += reply.text.startswith("2")
            text += reply.text + "1"
        if chance.random() < 0.3:
            self.books["raised"] += 1
            raise LookupError("lost")


def run(lab, folder, *, damaged=0):
    """The step's metrics, and the books of sampler and environment."""
    policy, environment = lab.Tabular(length=14), Wanders()
    sampler = Books(lab, policy)
    sampler.damaged = damaged
    groupwise.train(
        policy=policy,
        sampler=sampler,
        environment=environment,
        prompts={"name": lab.rows(), "held_out": 0.0},
        rewards=[lab.ones],
        train={"steps": 1, "groups_per_step": 6, "group_size": 4},
        evaluation={"prompts": 0},
        output=folder,
        reports=[],
        quiet=True,
    )
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1]), environment.books, sampler


def test_turns_are_counted_as_the_environment_made_them(lab, tmp_path):
    metrics, books, _ = run(lab, tmp_path / "run")
    assert 0 < books["continued"] < books["later"] < books["turns"]
    assert metrics["turns/as_sampled"] == 1
    assert metrics["turns/continued"] == pytest.approx(books["continued"] / books["later"])
    assert books["parsed"] > 0 < books["like"]
    assert metrics["turns/calls"] == pytest.approx(books["parsed"] / books["turns"])
    made = 2 * books["parsed"] + books["like"]  # each parsed one has a faulty one beside it
    assert metrics["turns/parsed"] == pytest.approx(books["parsed"] / made)
    assert metrics["failed/environment/LookupError"] == books["raised"] > 0


def test_turns_that_are_not_as_they_were_drawn_are_counted(lab, tmp_path):
    metrics, books, sampler = run(lab, tmp_path / "run", damaged=4)
    # Only the first turn of a damaged rollout is another one.
    assert 0 < sampler.wrong < books["turns"]
    expected = 1 - sampler.wrong / books["turns"]
    assert metrics["turns/as_sampled"] == pytest.approx(expected)
