"""A model and its tools in turns: until it stops calling, or a limit is reached."""

import asyncio

import pytest

from groupwise import ToolCall
from groupwise.environment import ContextRefused, EpisodeEnded, Reply
from groupwise_agents.conversation import converse, messages_of
from groupwise_agents.limits import Limits
from groupwise_agents.toolbox import Toolbox

QUESTION = [{"role": "user", "content": "1 + 1?"}]


def add(left: int, right: int) -> int:
    """Add two numbers.

    Args:
        left: one number
        right: the other
    """
    return left + right


def finish() -> None:
    """Finish the episode."""
    raise EpisodeEnded


ADD = ToolCall("add", {"left": 1, "right": 1})


class Player:
    """Gives these replies, one after the other, and keeps what it was called with."""

    def __init__(self, *turns):
        self.turns, self.contexts, self.tools = [*turns], [], []

    async def __call__(self, context, *, limit=None, tools=None):
        self.contexts.append([*context])
        self.tools.append(tools)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    async def shortened(self, text, most):
        return text if len(text) <= most else f"{text[:most]} [... cut]"


def calling(*calls, truncated=False):
    return Reply("so", "policy", truncated, calls, "")


def talk(*turns, tools=(add, finish), **limits):
    player = Player(*turns)
    return player, asyncio.run(converse(player, QUESTION, Toolbox(tools), Limits(**limits)))


def columns(found):
    return [found.columns[name] for name in ("turns", "calls", "call_errors")]


def test_a_model_calls_and_reads_until_it_answers():
    player, found = talk(calling(ADD, ToolCall("nope")), Reply("It is 2.", "policy"))
    assert found.reply.text == "It is 2."
    assert columns(found) == [2, 2, 1]
    assert found.columns["tool_seconds"] > 0
    assert found.ended is None
    assert "ended" not in found.outcome
    first, second = player.contexts
    assert first == QUESTION
    assert second[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [ADD.chat, *second[1]["tool_calls"][1:]],
    }
    assert [(m["role"], m["name"]) for m in second[2:]] == [("tool", "add"), ("tool", "nope")]
    assert second[2]["content"] == "2"
    assert [tool["function"]["name"] for tool in player.tools[0]] == ["add", "finish"]
    assert player.tools[0] is player.tools[1]


def test_the_calls_of_the_last_turn_are_not_made():
    made = []

    def note() -> None:
        """Note that it was called."""
        made.append(1)

    _, found = talk(*[calling(ToolCall("note"))] * 3, tools=[note], turns=3)
    assert len(made) == 2
    assert columns(found) == [3, 2, 0]
    assert found.outcome["ended"] == "turns"


def test_calls_beyond_their_limit_are_answered_by_an_error():
    player, found = talk(calling(ADD, ADD), calling(ADD), Reply("2", "policy"), calls=1)
    answers = [m["content"] for m in player.contexts[-1] if m["role"] == "tool"]
    assert answers == ["2", *["error: no calls are left; answer without one"] * 2]
    assert columns(found) == [3, 3, 2]


@pytest.mark.parametrize("sizes", [(5, 4, 4), (3, 6), (1, 1, 1, 1), (2, 1)])
def test_no_more_calls_are_made_than_the_limit_in_any_later_turn(sizes):
    made = []

    def note() -> None:
        """Note that it was called."""
        made.append(1)

    turns = [calling(*[ToolCall("note")] * size) for size in sizes]
    _, found = talk(*turns, Reply("2", "policy"), tools=[note], calls=2)
    assert len(made) == 2
    assert columns(found) == [len(sizes) + 1, sum(sizes), sum(sizes) - 2]


def test_a_tool_cannot_change_what_was_said():
    """What it does to its arguments, and later to what it has returned, is its own affair."""
    asked, board = {"moves": [{"to": [1, 2]}]}, {"board": [0, 0]}

    def move(moves: list[dict]) -> list:
        """Move.

        Args:
            moves: where to
        """
        moves[0]["to"].clear()
        board["board"][0] += 1
        return [{"type": "text", "text": "seen"}, {"type": "image", "image": [board]}]

    moving = calling(ToolCall("move", asked))
    player, _ = talk(moving, moving, Reply("2", "policy"), tools=[move])
    calls = [m["tool_calls"][0] for m in player.contexts[-1] if "tool_calls" in m]
    assert [own["function"]["arguments"] for own in calls] == [{"moves": [{"to": [1, 2]}]}] * 2
    answers = [m["content"] for m in player.contexts[-1] if m["role"] == "tool"]
    assert [own[1]["image"] for own in answers] == [[{"board": [n, 0]}] for n in (1, 2)]


def test_long_answers_are_cut():
    player, _ = talk(
        calling(ToolCall("add", {"left": 10**9, "right": 1})), Reply("2", "policy"), answer_tokens=4
    )
    assert player.contexts[-1][-1]["content"] == "1000 [... cut]"


def test_calls_of_a_turn_that_was_cut_off_are_not_made():
    _, found = talk(calling(ADD, truncated=True))
    assert columns(found) == [1, 0, 0]


def test_a_tool_ends_the_episode():
    _, found = talk(calling(ToolCall("finish")))
    assert found.outcome["ended"] == "tool"


def test_a_context_without_room_ends_the_conversation():
    _, found = talk(calling(ADD), ContextRefused("full"))
    assert columns(found) == [1, 1, 0]
    assert found.ended is None
    with pytest.raises(ContextRefused):
        talk(ContextRefused("too long"))


def test_prompts_of_text_are_messages_of_the_user():
    assert messages_of({"prompt": "1 + 1?"}) == [{"role": "user", "content": "1 + 1?"}]
    assert messages_of({"prompt": QUESTION}) == QUESTION
