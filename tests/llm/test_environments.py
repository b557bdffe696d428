"""A language model in environments: its turns in an episode are one rollout, with holes."""

import re

import pytest
import torch

from groupwise import Environment
from groupwise.errors import UserError
from groupwise.testing import play_episodes

CHAT = [{"prompt": [{"role": "user", "content": content}]} for content in ("12+34=", "Hi", "7-5")]
TEXTS = [{"prompt": text} for text in ("12+34=", "Hi ", "7-5=")]


class Answered(Environment):
    """Three turns with a tool's answer after each; fewer after an answer with an "e"."""

    def columns(self, labels):
        return ["turns"]

    async def play(self, row, players):
        (player,) = players.values()
        messages, turns = [*row["prompt"]], 0
        for turns in (1, 2, 3):
            reply = await player(messages, limit=8)
            if re.search("e", reply.text):
                break
            messages += [
                reply.message,
                {"role": "tool", "content": f"answer {turns}"},
            ]
        return {"turns": turns}


class Written(Environment):
    """The same in a text, which the model goes on with."""

    async def play(self, row, players):
        (player,) = players.values()
        text = row["prompt"]
        for turn in range(3):
            text += (await player(text, limit=20)).text + f" ({turn}) "


def play(policy, environment, rows, *, batch=64):
    return play_episodes(environment, {"policy": policy}, rows, batch=batch, seed=5)


@pytest.mark.parametrize(("environment", "rows"), [(Answered, CHAT), (Written, TEXTS)])
def test_the_turns_of_an_episode_are_one_rollout_with_holes(make, environment, rows):
    policy = make("llama", max_new_tokens=90)
    episodes = play(policy, environment(), rows)
    rollouts = episodes.rollouts("policy")
    assert len(rollouts) == len(episodes.judged) == 12
    assert rollouts.groups.tolist() == [n for n in range(3) for _ in range(4)]
    holes = [
        bool((~own[: int(extent)]).any())
        for own, extent in zip(rollouts.mask, rollouts.extents, strict=True)
    ]
    several = (
        [int(own) > 1 for own in episodes.judged.facts["turns"]] if rows is CHAT else [True] * 12
    )
    assert holes == several
    assert any(several)
    with torch.no_grad():
        ours = policy(rollouts).log_probs
    gap = (ours - rollouts.sampler_log_probs).abs()[rollouts.mask]
    assert float(gap.max()) < 1e-4


@pytest.mark.parametrize("batch", [1, 5])
def test_the_batch_changes_no_turn(make, batch):
    policy = make("llama", max_new_tokens=90)
    expected, other = (play(policy, Answered(), CHAT, batch=own) for own in (64, batch))
    assert other.judged.completions == expected.judged.completions
    assert torch.equal(other.rollouts("policy").mask, expected.rollouts("policy").mask)


def test_an_episode_ends_where_no_room_is_left(make):
    policy = make("llama", max_new_tokens=14)
    rollouts = play(policy, Written(), TEXTS).rollouts("policy")
    assert len(rollouts) == 12
    assert int(rollouts.extents.max()) <= 14
    assert rollouts.ended == ["length"] * 12


class Spent(Environment):
    """Two turns, the second without room: `limit` is what is left of a budget."""

    async def play(self, row, players):
        (player,) = players.values()
        text = row["prompt"]
        text += (await player(text, limit=8)).text
        await player(f"{text} more ", limit=0)


def test_no_turn_is_drawn_where_a_limit_leaves_no_room(make):
    rollouts = play(make("llama", max_new_tokens=90), Spent(), TEXTS).rollouts("policy")
    assert len(rollouts) == 12
    assert int(rollouts.extents.max()) <= 8
    assert rollouts.ended == ["length"] * 12


class Both(Environment):
    """Two turns of one rollout, both returned to be judged."""

    async def play(self, row, players):
        (player,) = players.values()
        first = await player(row["prompt"], limit=8)
        second = await player(row["prompt"] + first.text + " more ", limit=8)
        return [(first, {}), (second, {})]


def test_two_turns_of_one_rollout_cannot_both_be_judged(make):
    with pytest.raises(UserError, match="several replies that are turns of one rollout"):
        play(make("llama", max_new_tokens=90), Both(), TEXTS)
