"""Calls of tools: what a player writes, as environments receive it and put it into messages."""

import pytest

from groupwise import Environment, ToolCall, testing
from groupwise.environment import Reply

ADD = ToolCall("add", {"a": 1}, id="1")
BROKEN = ToolCall("", fault="the call names no function")


def test_a_message_has_the_calls_that_can_be_made():
    reply = Reply("Let me see <add>", "policy", calls=(ADD, BROKEN), content="Let me see")
    function = {"name": "add", "arguments": {"a": 1}}
    assert reply.message == {
        "role": "assistant",
        "content": "Let me see",
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    assert reply.text == "Let me see <add>"
    assert Reply("Hi", "policy", calls=(BROKEN,)).message == {"role": "assistant", "content": "Hi"}
    assert hash(reply) == hash(Reply(reply.completion, "policy", content=reply.content))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (ADD.chat, ADD),
        ({"name": "add", "arguments": {"a": 1}, "id": "1"}, ADD),
        ({"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}, ADD),
        ({"function": {"name": "now"}}, ToolCall("now")),
        ({"name": "now", "id": "2", "parameters": None}, ToolCall("now", id="2")),
        ({"name": "say", "arguments": r'{"a": "\ud83d\ude00"}'}, ToolCall("say", {"a": "😀"})),
        ({"name": "say", "arguments": r'{"a": "\\u0000"}'}, ToolCall("say", {"a": r"\u0000"})),
    ],
)
def test_calls_in_the_forms_of_chat_messages(written, expected):
    assert ToolCall.of(written) == expected


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ({"name": "add", "arguments": '{"a": 1'}, "not valid JSON"),
        ({"name": "add", "arguments": "[" * 100_000}, "not valid JSON"),
        ({"name": "add", "arguments": "[1]"}, "not a JSON object"),
        ({"name": "add", "arguments": 3}, "not a JSON object"),
        ({"name": 3}, "names no function"),
        ({"function": "add"}, "names no function"),
        ("add", "names no function"),
        (None, "names no function"),
        ({"name": "add", "parameters": {"a": 1}}, "has 'parameters' and no 'arguments'"),
        ({"name": "add", "arguments": None, "args": {}}, "has 'args' and no 'arguments'"),
        ({"function": {"name": "add", "a": 1, "b": 2}}, "has 'a', 'b' and no 'arguments'"),
        ({"name": "add", "arguments": r'{"a": ["\ud83d"]}'}, "an argument has an incomplete"),
        ({"name": "add", "arguments": {"\ud83d": 1}}, "an argument has an incomplete character"),
        ({"name": "sh", "arguments": r'{"a": ["\u0000"]}'}, "an argument has a NUL character"),
        ({"name": "sh", "arguments": {"a": "\\\x00"}}, "an argument has a NUL character"),
        ({"name": "s\x00h", "arguments": {}}, "name or id has a NUL character"),
        ({"name": "\ud83d", "arguments": {}}, "name or id has an incomplete character"),
        ({"id": "\udc00", "function": {"name": "add"}}, "name or id has an incomplete character"),
    ],
)
def test_a_malformed_call_says_what_is_wrong_with_it(written, fault):
    call = ToolCall.of(written)
    assert fault in call.fault
    assert str(call).encode()


class Adds(Environment):
    """Answers calls until there are none; `heard` has what the player wrote."""

    def __init__(self, heard):
        self.heard = heard

    async def play(self, row, players):
        (player,) = players.values()
        messages = [{"role": "user", "content": row["prompt"]}]
        for _ in range(3):
            reply = await player(messages, tools=[{"type": "function"}])
            self.heard.append((reply.calls, reply.message.get("tool_calls")))
            if not reply.calls:
                return
            answer = await player.shortened("a long answer", 2)
            messages += [reply.message, {"role": "tool", "content": answer}]


def test_functions_in_place_of_models_call_tools():
    heard = []
    written = ["It is 2.", ADD, [ADD, BROKEN], [{"role": "assistant", "tool_calls": [ADD.chat]}]]

    def player(prompt, random):
        return random.choice(written)

    testing.check_environment(Adds(heard), [{"prompt": "1+1"}, {"prompt": "2+2"}], player)
    made = [calls for calls, _ in heard]
    for calls in ((), (ADD,), (ADD, BROKEN)):
        assert calls in made
    assert all((in_message is None) == (not calls) for calls, in_message in heard)
