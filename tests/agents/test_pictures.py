"""Pictures that tools return: parts of a message, which the player shortens or refuses."""

import asyncio

import pytest
from tests.agents.scripted import Player, play, say

from groupwise import ToolCall
from groupwise_agents.content import content_of
from groupwise_agents.endpoint.refusal import Refusal
from groupwise_agents.endpoint.request import Request
from groupwise_agents.openenv.text import with_observation
from groupwise_agents.toolbox import Toolbox
from groupwise_agents.tools import Tools
from groupwise_agents.trl.environment import TRLEnvironment

Image = pytest.importorskip("PIL.Image")
PICTURE = Image.new("RGB", (64, 48), "red")
BLOCK, TEXT = {"type": "image", "image": PICTURE}, {"type": "text", "text": "enlarged"}
ROW = {"prompt": [{"role": "user", "content": "What is it?"}]}


def crop(side: int) -> Image.Image:
    """Cut the picture.

    Args:
        side: its pixels
    """
    return PICTURE.crop((0, 0, side, side))


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (PICTURE, [BLOCK]),
        ([BLOCK, TEXT], [BLOCK, TEXT]),
        ([PICTURE, "enlarged"], [BLOCK, TEXT]),
        ((TEXT, {"type": "image_url", "image_url": {"url": "data:,"}}), None),
        ([TEXT, TEXT], "enlargedenlarged"),
        (["a", "b"], '["a", "b"]'),
        ([{"type": "cat", "cat": 1}], '[{"type": "cat", "cat": 1}]'),
        ([{"type": "image"}], '[{"type": "image"}]'),
        ([{**TEXT, "score": 3}], '[{"type": "text", "text": "enlarged", "score": 3}]'),
        (
            [{"type": "image", "image": "cat.png", "caption": "a cat"}],
            '[{"type": "image", "image": "cat.png", "caption": "a cat"}]',
        ),
        ([BLOCK, {**TEXT, "score": 3}], [BLOCK, {**TEXT, "score": 3}]),
        ([], "[]"),
        (None, ""),
        (7, "7"),
    ],
)
def test_what_a_tool_returns_becomes_the_content_of_a_message(value, content):
    assert content_of(value) == (list(value) if content is None else content)


def test_the_answer_of_a_tool_has_its_picture_in_the_message():
    answers = asyncio.run(Toolbox([crop]).answers([ToolCall("crop", {"side": 8}, id="a")]))
    (message,) = answers.messages
    assert {key: message[key] for key in ("role", "name", "tool_call_id")} == {
        "role": "tool",
        "name": "crop",
        "tool_call_id": "a",
    }
    (part,) = message["content"]
    assert part["type"] == "image"
    assert part["image"].size == (8, 8)
    assert answers.errors == 0


class Blind(Player):
    """Reads text alone."""

    async def shortened(self, content, most):
        return content if isinstance(content, str) else "you can only read text"


def test_the_player_decides_what_it_sees_and_a_run_says_once_what_it_did_not(capsys):
    calls = say(crop={"side": 8})
    player = Player([calls, say("red")])
    asyncio.run(Tools([crop]).play(ROW, {"policy": player}))
    (part,) = player.contexts[-1][-1]["content"]
    assert part["image"].size == (8, 8)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        player = Blind([calls, say("red")])
        asyncio.run(Tools([crop]).play(ROW, {"policy": player}))
        assert player.contexts[-1][-1]["content"] == "you can only read text"
    error = capsys.readouterr().err
    assert error.count("warning: tool 'crop' returned a picture that the model did not see") == 1
    assert "environment.answer_tokens (512)" in error


class Camera:
    """An environment as TRL's, which shows pictures."""

    def reset(self, **row):
        return [BLOCK, TEXT]

    def look(self, words: bool) -> object:
        """Look.

        Args:
            words: whether with words
        """
        return [BLOCK, TEXT] if words else PICTURE

    def listen(self) -> list:
        """Listen."""
        return [{"type": "audio", "audio": b""}]


def test_trls_environments_show_pictures():
    _, player = play(
        TRLEnvironment(Camera), ROW, say(look={"words": True}), say(look={"words": False}), say()
    )
    first, *_ = player.contexts[-1]
    assert first["content"] == [{"type": "text", "text": "What is it?"}, BLOCK, TEXT]
    answers = [own["content"] for own in player.contexts[-1] if own["role"] == "tool"]
    assert answers == [[BLOCK, TEXT], [BLOCK]]
    asked = {"prompt": [{"role": "user", "content": [{"type": "image", "image": "row.png"}]}]}
    _, player = play(TRLEnvironment(Camera), asked, say())
    assert player.contexts[0][0]["content"][0] == {"type": "image", "image": "row.png"}
    with pytest.raises(Exception, match="a content block of type 'audio'"):
        play(TRLEnvironment(Camera), ROW, say(listen={}), say())


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("Play.", "Play.\nA hall."),
        ([{"type": "text", "text": "Play."}], "Play.\nA hall."),
        (
            [BLOCK, {"type": "text", "text": "Play."}],
            [
                BLOCK,
                {"type": "text", "text": "Play."},
                {"type": "text", "text": "\nA hall."},
            ],
        ),
    ],
)
def test_the_first_observation_follows_a_prompt_in_parts(content, shown):
    before = [{"role": "system", "content": "Be brief."}]
    messages = with_observation([*before, {"role": "user", "content": content}], "A hall.")
    assert messages == [*before, {"role": "user", "content": shown}]


class Web:
    """An environment that shows what it has read."""

    def reset(self, **row):
        return [{"type": "image", "image": "/etc/private.png"}]

    def look(self) -> str:
        """Look."""
        return ""


def test_an_environment_cannot_have_files_opened_by_its_first_message():
    with pytest.raises(Exception, match="no file or web address of a message is read"):
        play(TRLEnvironment(Web), ROW, say())


@pytest.mark.parametrize("url", ["/etc/private.png", "http://127.0.0.1/private.png"])
def test_an_agent_cannot_have_files_opened_by_its_requests(url):
    def body(url):
        content = [TEXT, {"type": "image_url", "image_url": {"url": url}}]
        return {"model": "policy", "messages": [{"role": "user", "content": content}]}

    assert Request.of(body("data:,")).messages == body("data:,")["messages"]
    with pytest.raises(Refusal, match="no file or web address of a message is read") as raised:
        Request.of(body(url))
    assert raised.value.status == 400
