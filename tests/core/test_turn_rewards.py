"""What `play` returns of turns: `turn_rewards`, `states` and `role`, on the rollouts."""

import json

import pytest
import torch
from tests.core.test_environments import arguments

import groupwise
from groupwise.environment import Environment
from groupwise.kit.errors import UserError
from groupwise.testing import check_environment, play_episodes
from groupwise_algorithms.dr_grpo import DrGRPO


class Walk(Environment):
    """One player, up to three turns; columns: what it returns, from the texts of its turns."""

    def __init__(self, columns, names=()):
        self.returned, self.names = columns, names

    def columns(self, labels):
        return self.names

    async def play(self, row, players):
        (player,) = players.values()
        texts = []
        for _ in range(3):
            texts.append((await player(row)).text)
            if texts[-1].startswith("1"):
                break
        return self.returned(texts)


def of_turns(texts):
    rewards = [None if text.startswith("1") else len(text) for text in texts]
    return {"turn_rewards": rewards, "states": [("at", n) for n in range(len(texts))]}


def play(lab, environment, *labels, size=4):
    labels = labels or ("policy",)
    policies = {label: lab.Tabular(prompts=8, seed=number) for number, label in enumerate(labels)}
    return play_episodes(environment, policies, lab.rows(8)[:4], size=size, seed=3)


def test_a_turn_has_its_reward_and_state_and_those_of_later_ones(lab):
    episodes = play(lab, Walk(of_turns))
    rollouts = episodes.rollouts("policy")
    calls = [own.first for own in episodes.rollouts_of("policy")]
    texts = dict(zip(calls, rollouts.completions, strict=True))
    states = {}
    for own, turns in zip(calls, rollouts.turns, strict=True):
        path, last = [own], own
        while following := [call for call in texts if call.parent is last]:
            (last,) = following
            path.append(last)
        assert [turn.reward for turn in turns] == [
            None if texts[call].startswith("1") else len(texts[call]) for call in path
        ]
        assert [turn.decisions for turn in turns] == [len(texts[own])] + [0] * (len(path) - 1)
        for call, turn in zip(path, turns, strict=True):
            draw = call.episode.group.number
            assert states.setdefault((draw, call.turn), turn.state) == turn.state
    assert {turn for _, turn in states} == {0, 1, 2}
    assert len({*states.values()}) == len(states)
    assert {len(turns) for turns in rollouts.turns} == {1, 2, 3}


def test_rewards_of_turns_are_a_column_only_if_it_is_named(lab):
    assert not {"turn_rewards", "states"} & {*play(lab, Walk(of_turns)).judged.facts}
    named = play(lab, Walk(of_turns, ["turn_rewards"])).judged
    assert all(1 <= len(rewards) <= 3 for rewards in named.facts["turn_rewards"])
    assert "states" not in named.facts


class Duel(Environment):
    """Two sides of one policy, two turns each; every reply is judged, with columns of its own."""

    async def play(self, row, players):
        (player,) = players.values()
        replies = [await player(row) for _ in range(4)]
        sides = ["first", "second", "first", "second"]
        return [
            (reply, {"role": side, "turn_rewards": [number]})
            for number, (reply, side) in enumerate(zip(replies, sides, strict=True))
        ]


def test_replies_that_are_judged_apart_have_turns_and_roles_of_their_own(lab):
    rollouts = play(lab, Duel()).rollouts("policy")
    rewards = [turn.reward for (turn,) in rollouts.turns]
    sides = {0: "first", 1: "second", 2: "first", 3: "second"}
    assert sorted(rewards) == [number for number in range(4) for _ in range(16)]
    assert rollouts.roles == [sides[reward] for reward in rewards]


def test_a_turn_has_credit_for_later_ones_in_other_rollouts(lab):
    """Each turn has a reward of 1: the returns of first turns are the numbers of turns."""
    episodes = play(lab, Walk(lambda texts: {"turn_rewards": [1] * len(texts)}))
    scores = lab.score(episodes, lab.scores_of(torch.zeros(16)))["policy"]
    rollouts = episodes.rollouts("policy")
    every = enumerate(episodes.rollouts_of("policy"))
    first = [n for n, own in every if own.first.parent is None]
    algorithm = DrGRPO(DrGRPO.Config(credit="return"))
    advantages = algorithm.estimate(scores, rollouts, {})[first, 0].reshape(4, 4)
    counts = torch.tensor([len(rollouts.turns[n]) for n in first]).double().reshape(4, 4)
    torch.testing.assert_close(advantages, counts - counts.mean(dim=1, keepdim=True))
    assert len(counts.unique()) == 3


def test_a_run_logs_the_mean_reward_of_each_turn(lab, tmp_path):
    groupwise.train(
        **arguments(
            lab,
            tmp_path,
            environment=Walk(lambda texts: {"turn_rewards": [*range(5, 5 + len(texts))]}),
            algorithm={"name": "grpo", "credit": {"name": "return", "discount": 0.9}},
        )
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "grad_norm" in row]
    for row in steps:
        assert [row[f"turn_reward/{n}"] for n in (1, 2, 3)] == [5, 6, 7]
    assert sum(row["grad_norm"] for row in steps) > 0


def test_a_run_whose_environment_names_no_states_says_so_once(lab, tmp_path, capsys):
    sections = {"environment": Walk(lambda texts: {}), "quiet": False}
    groupwise.train(
        **arguments(lab, tmp_path, algorithm={"name": "grpo", "credit": "gigpo"}, **sections)
    )
    printed = capsys.readouterr()
    text = " ".join((printed.out + printed.err).split())
    assert text.count("algorithm.credit: gigpo compares `states`, and in this step") == 1


def test_check_environment_plays_them(lab):
    rows = [{"prompt": "1"}, {"prompt": "2"}]

    def script(prompt, random):
        return random.choice(["1", "2", "22"])

    check_environment(Walk(of_turns), rows, script)
    counter = iter(range(10**6))
    drifting = Walk(lambda texts: {"turn_rewards": [next(counter) for _ in texts]})
    with pytest.raises(AssertionError, match="an episode depends on its row"):
        check_environment(drifting, rows, script)
    short = Walk(lambda texts: {"turn_rewards": [1.0]})
    with pytest.raises(AssertionError, match="returned 1 `turn_rewards`"):
        check_environment(short, rows, script)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"turn_rewards": [1.0] * 4}, r"returned 4 `turn_rewards` .* 'policy' had \d turns"),
        ({"states": ["a"] * 4}, r"returned 4 `states` for an episode"),
        ({"turn_rewards": 1.0}, r"returned 1\.0 \(float\) as `turn_rewards`, expected a list"),
        ({"turn_rewards": "high"}, r"returned 'high' \(str\) as `turn_rewards`"),
        ({"turn_rewards": ["x"]}, r"returned 'x' \(str\) in `turn_rewards`, expected a finite"),
        ({"turn_rewards": [float("inf")]}, r"returned inf \(float\) in `turn_rewards`"),
        ({"states": [{"room": 1}]}, r"returned \{'room': 1\} \(dict\) in `states`, expected what"),
        ({"role": 1}, r"returned 1 \(int\) as `role`, expected a word"),
    ],
)
def test_columns_that_do_not_fit_the_turns_are_refused(lab, columns, message):
    def returned(texts):
        one = all(len(own) == 1 for own in columns.values() if isinstance(own, list))
        return columns if len(texts) == 1 or not one else {}

    with pytest.raises(UserError, match=message):
        play(lab, Walk(returned), size=8)


def test_a_turn_without_a_number_has_no_reward(lab):
    rollouts = play(lab, Walk(lambda texts: {"turn_rewards": [float("nan")] * len(texts)}))
    assert all(turn.reward is None for own in rollouts.rollouts("policy").turns for turn in own)


class Tree(Environment):
    """Three candidates for each turn, of which the longest goes on: the sampling of AT-GRPO."""

    def __init__(self, turns):
        self.turns = turns

    async def play(self, row, players):
        (player,) = players.values()
        judged, context = [], row
        for _ in range(self.turns):
            candidates = await player.group(context)
            judged += candidates
            context = max(candidates, key=lambda reply: len(reply.text))
        return [(reply, {}) for reply in judged]


@pytest.mark.parametrize("turns", [3, 45])
def test_candidates_are_compared_with_those_of_their_own_turn_and_context(lab, turns):
    episodes = play(lab, Tree(turns), size=3)
    groups, contexts = {}, {}
    pairs = zip(
        episodes.rollouts("policy").groups.tolist(), episodes.rollouts_of("policy"), strict=True
    )
    for group, own in pairs:
        context = (own.episode.identity, own.first.turn)
        contexts.setdefault(group, set()).add(context)
        groups.setdefault(context, set()).add(group)
    assert len(contexts) == 4 * 3 * turns
    assert len({*episodes.rollouts("policy").episodes.tolist()}) == 3 * len(contexts)
    assert all(len(own) == 1 for own in (*groups.values(), *contexts.values()))
