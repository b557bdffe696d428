"""The turns of a language model's rollout, with the rewards and states of its environment."""

import pytest
import torch
from tests.llm.test_environments import TEXTS, Written, play

from groupwise.rewards import Scores
from groupwise_algorithms.dr_grpo import DrGRPO


class Rewarded(Written):
    """The same with a reward for each turn, its number of characters, and a state for each."""

    async def play(self, row, players):
        (player,) = players.values()
        text, rewards = row["prompt"], []
        for turn in range(3):
            reply = await player(text, limit=4 + turn)
            text += reply.text + f" ({turn}) "
            rewards.append(len(reply.text))
        return {"turn_rewards": rewards, "states": ["first", "later", "later"]}


@pytest.mark.parametrize("environment", [Written, Rewarded])
def test_the_turns_of_a_rollout_are_what_was_drawn_in_one_go(make, environment):
    policy = make("llama", max_new_tokens=90)
    rollouts = play(policy, environment(), TEXTS).rollouts("policy")
    for turns, mask in zip(rollouts.turns, rollouts.mask, strict=True):
        assert len(turns) == 3
        assert sum(turn.decisions for turn in turns) == int(mask.sum())
        if environment is Rewarded:
            assert all(1 <= turn.decisions <= 4 + number for number, turn in enumerate(turns))
            assert turns[0].state != turns[1].state == turns[2].state is not None
        else:
            assert all(turn.reward is turn.state is None for turn in turns)


def test_each_turn_of_a_rollout_has_its_own_advantage(make):
    episodes = play(make("llama", max_new_tokens=90), Rewarded(), TEXTS)
    scores = Scores(
        names=("none",),
        weights=(1.0,),
        values=torch.zeros(12, 1, dtype=torch.float64),
        failed=torch.zeros(12, dtype=torch.bool),
    )
    rollouts = episodes.rollouts("policy")
    algorithm = DrGRPO(DrGRPO.Config(credit={"name": "return", "discount": 0.0}))
    advantages = algorithm.estimate(scores, rollouts, {})
    rewards = torch.tensor([[turn.reward for turn in own] for own in rollouts.turns]).double()
    expected = (rewards.view(3, 4, 3) - rewards.view(3, 4, 3).mean(dim=1, keepdim=True)).view(12, 3)
    for row, own in enumerate(rollouts.turns):
        parts = advantages[row][rollouts.mask[row]].split([turn.decisions for turn in own])
        for part, value in zip(parts, expected[row], strict=True):
            torch.testing.assert_close(part, value.expand(len(part)))
    assert float(expected.abs().max()) > 0
