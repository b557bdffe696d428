"""The endpoint: what an agent sends back is recognised, and what cannot be answered is refused."""

import asyncio
import json
import random
import socket
import threading
import time
import warnings
from collections import Counter
from itertools import product
from urllib.parse import urlsplit

import pytest
from tests.agents.requests import ADD, GOOD, Player, ask, chat, played, says, user

from groupwise.environment import CompletionFailed, ContextRefused
from groupwise.kit.errors import UserError
from groupwise.testing import check_environment
from groupwise.tool_call import ToolCall
from groupwise_agents.agent import Agent

NO_ROOM = ContextRefused("no room")


def test_replies_that_come_back_are_the_players_own():
    """Whatever clients add to a message in JSON, or leave out."""

    def agent(base_url):
        first = chat(base_url, user("Hi"))
        own = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
        (call,) = first["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == ADD.arguments
        spaced = json.dumps(ADD.arguments, indent=1)
        own["tool_calls"] = [{**call, "function": {"arguments": spaced, "name": "add"}}]
        answer = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        second = chat(base_url, user("Hi"), own, answer)
        assert second == {"role": "assistant", "content": "It is 3."}
        parts = [{"type": "text", "text": "It is 3."}]
        again = {"role": "assistant", "content": parts}
        chat(base_url, user("Hi"), own, answer, again, {**user("Sure?"), "name": None})

    replies = says("<add>", ADD, content=""), says("It is 3.")
    outcome, player = played(agent, *replies)
    _, called, answer, right, asked = player.contexts[-1]
    assert called == replies[0].message
    assert right == replies[1].message
    assert (answer["name"], answer["content"], asked) == ("add", "3", user("Sure?"))
    assert [context == player.contexts[-1][: len(context)] for context in player.contexts] == [
        True
    ] * 3
    assert (outcome["turns"], outcome["calls"], outcome["drifts"]) == (3, 1, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"role": "assistant", "content": "It is 4."},
        {"role": "assistant", "content": "It is 3. "},
        {"role": "assistant", "content": "It is 3.", "tool_calls": [{"function": {"name": "add"}}]},
    ],
)
def test_a_changed_reply_is_refused_or_begins_a_rollout(changed):
    statuses = []

    def agent(base_url):
        chat(base_url, user("Hi"))
        messages = [user("Hi"), changed, user("Sure?")]
        statuses.append(ask(base_url, {"model": "policy", "messages": messages}))
        chat(base_url, user("Hi"), {"role": "assistant", "content": "It is 3."}, user("Sure?"))

    outcome, player = played(agent, says("It is 3."))
    assert outcome["drifts"] == 1
    assert len(player.contexts) == outcome["turns"] == 2
    outcome, player = played(agent, says("It is 3."), drift="new_rollout")
    assert outcome["drifts"] == 1
    assert player.contexts[1][1]["content"] == changed["content"]
    (refused, answer), (accepted, _) = statuses
    assert (refused, accepted) == (400, 200)
    assert answer["error"]["code"] == "changed_reply"
    assert "new_rollout" in answer["error"]["message"]


def test_other_conversations_are_no_drift():
    """Examples in the first prompt, a shortened context, a reply that is drawn again."""

    def agent(base_url):
        example = [user("1+1?"), {"role": "assistant", "content": "2"}]
        chat(base_url, *example, user("Hi"))
        chat(base_url, *example, user("Hi"))
        chat(base_url, user("Before: hello."), {"role": "assistant", "content": "Well"}, user("?"))

    outcome, player = played(agent, says("one"), says("two"))
    assert (outcome["turns"], outcome["drifts"]) == (3, 0)
    assert player.contexts[0] == player.contexts[1]


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ("{", 400, "invalid_request", "not JSON"),
        ("[]", 400, "invalid_request", "JSON object"),
        ({"model": "policy"}, 400, "invalid_request", "messages: Field required"),
        (
            {**GOOD, "messages": [{"content": "Hi"}]},
            400,
            "invalid_request",
            "messages.0.role: Field required",
        ),
        ({**GOOD, "tools": {"add": 1}}, 400, "invalid_request", "tools: Input should be"),
        ({**GOOD, "max_tokens": 0}, 400, "invalid_request", "max_tokens: Input should be greater"),
        ({**GOOD, "n": 2}, 400, "unsupported_parameter", "n: 2"),
        ({**GOOD, "logprobs": True}, 400, "unsupported_parameter", "logprobs"),
        ({**GOOD, "stop": ["\n"]}, 400, "unsupported_parameter", "stop"),
        ({**GOOD, "tool_choice": "required"}, 400, "unsupported_parameter", "tool_choice"),
        ({**GOOD, "model": "gpt-5"}, 404, "model_not_found", "'gpt-5'; expected policy"),
    ],
)
def test_what_is_no_request_for_a_completion_is_refused(body, status, code, words):
    answers = []

    def agent(base_url):
        answers.append(ask(base_url, body))
        chat(base_url, user("Hi"))  # the agent may go on

    _, player = played(agent, says("Hello"))
    ((answered, answer),) = answers
    assert (answered, answer["error"]["code"]) == (status, code)
    assert words in answer["error"]["message"]
    assert len(player.contexts) == 1


DEEP = "[" * 200_000 + "]" * 200_000
VALUES = (
    *("null", "true", "7", "-1", "1.5", "NaN", "1e999", "9" * 5000, "1" + "0" * 400),
    *('"x"', '""', r'"\ud800"', r'"\u0000"', f'"{DEEP}"'),
    *("[]", "[1]", '["x"]', "[[]]", "[{}]", "{}", '{"a": 1}', '{"type": ["image"]}', DEEP),
    "[" * 150 + "]" * 150,
)
"""JSON of all types and sizes, some of which Python cannot hold."""
CALL = '{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}'
MESSAGES = (
    *("@", '{"role": @, "content": "Hi"}', '{"role": "user", "content": @}'),
    '{"role": "user", "content": [{"type": @, "text": "Hi"}]}',
    '{"role": "user", "content": [{"type": "text", "text": @}]}',
    '{"role": "user", "content": [{"type": "image_url", "image_url": @}]}',
    '{"role": "assistant", "content": @}',
    '{"role": "assistant", "content": "", "tool_calls": @}',
    '{"role": "assistant", "content": "", "tool_calls": [@]}',
    *(
        '{"role": "assistant", "tool_calls": [CALL]}'.replace("CALL", CALL.replace(part, "@"))
        for part in ('"a"', '"add"', '"{}"')
    ),
    '{"role": "assistant", "tool_calls": [{"id": "a", "function": @}]}',
    '{"role": "tool", "content": "3", "tool_call_id": @}',
    '{"role": "tool", "content": @, "tool_call_id": "a"}',
    '{"role": "user", "content": "Hi", "name": @, "reasoning_content": @}',
)
HI = '{"role": "user", "content": "Hi"}'
BODIES = (
    *("@", '{"model": @, "messages": [HI]}', '{"model": "policy", "messages": @}'),
    *(
        '{"model": "policy", "messages": [HI], "OPTION": @}'.replace("OPTION", option)
        for option in ("tools", "max_tokens", "stream", "n", "stop", "metadata", "response_format")
    ),
    *(
        '{"model": "policy", "messages": [HI, MESSAGE]}'.replace("MESSAGE", message)
        for message in MESSAGES
    ),
)


def test_any_json_in_any_field_is_answered_or_refused():
    statuses = Counter()

    def agent(base_url):
        for body, value in product(BODIES, VALUES):
            if not ("stream" in body and value == "true"):  # whose answer is not one JSON
                status, answer = ask(base_url, body.replace("HI", HI).replace("@", value))
                assert status == 200 or 400 <= status < 500, (body, value[:50], answer)
                statuses[status] += 1
        chat(base_url, user("Hi"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome, _ = played(agent, says("Hello"))
    assert outcome["turns"] == statuses[200] + 1 > 50
    assert statuses[400] > 200


def test_only_the_address_of_a_running_episode_is_served():
    addresses = []

    def agent(base_url, api_key):
        addresses.append(base_url)
        assert urlsplit(base_url).hostname == "127.0.0.1"
        chat(base_url, user("Hi"))
        ask(base_url, {**GOOD, "model": "other"})
        other = base_url.replace(api_key, "guessed")
        assert ask(other, GOOD)[0] == ask(other, path="/models")[0] == 410
        status, answer = ask(base_url, GOOD, path="/responses")
        assert (status, answer["error"]["code"]) == (404, "not_served")
        assert api_key not in answer["error"]["message"]
        _, answer = ask(base_url, path="/models")
        assert [model["id"] for model in answer["data"]] == ["policy", "other"]

    outcome, _ = played(agent, says("Hello"), labels=("policy", "other"))
    assert outcome["turns"] == 2
    with socket.socket() as left, pytest.raises(ConnectionRefusedError):
        left.connect(("127.0.0.1", urlsplit(addresses[0]).port))


def test_requests_after_the_end_of_an_episode_are_refused():
    answers, ended = [], threading.Event()

    def agent(base_url):
        def late():
            ended.wait()
            answers.append(ask(base_url, GOOD))

        threading.Thread(target=late).start()
        chat(base_url, user("Hi"))

    environment = Agent(agent)
    player = Player([says("Hello")])

    async def play():
        await environment.play({}, {"policy": player})
        ended.set()
        while not answers:
            await asyncio.sleep(0.001)
        await environment.close()

    asyncio.run(play())
    ((status, answer),) = answers
    assert (status, answer["error"]["code"]) == (410, "episode_over")
    assert len(player.contexts) == 1


def test_limits_and_tools_are_the_requests():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]

    def agent(base_url):
        chat(base_url, user("Hi"), max_tokens=7, tools=tools)
        chat(base_url, user("Hi"), max_completion_tokens=8, tools=tools, tool_choice="none")

    outcome, player = played(agent, says("Hello"))
    assert player.options == [(7, tools), (8, [])]
    assert outcome["calls"] == outcome["call_errors"] == 0
    outcome, _ = played(lambda base_url: chat(base_url, user("Hi")) and None, says("Hello"))
    assert outcome["calls"] is None  # without tools, no call is missing


def test_the_reason_of_an_end():
    reasons = []

    def agent(base_url):
        for _ in range(3):
            _, answer = ask(base_url, GOOD)
            reasons.append(answer["choices"][0]["finish_reason"])
            assert answer["usage"]["total_tokens"] == 0  # present, and not counted

    played(agent, says("Hello"), says("<add>", ADD), says("Hel", truncated=True))
    assert reasons == ["stop", "tool_calls", "length"]


def test_parameters_without_effect_are_named_once(capsys):
    def agent(base_url):
        chat(base_url, user("Hi"), temperature=0.7, seed=None, user="me", top_p=1)
        chat(base_url, user("Hi"), temperature=0.7)

    environment, player = Agent(agent), Player([says("Hello")])

    async def play():
        await environment.play({}, {"policy": player})
        await environment.play({}, {"policy": player})
        await environment.close()

    asyncio.run(play())
    (line,) = capsys.readouterr().err.splitlines()
    assert "sets temperature, top_p, which the run does not follow" in line


def test_a_context_without_room_ends_the_episode_unless_the_agent_goes_on():
    def agent(base_url):
        for text in ("long", "short"):
            status, answer = ask(base_url, {**GOOD, "messages": [user(text)]})
            codes.append((status, answer.get("error", {}).get("code")))
            if status == 400 and gives_up:
                raise ValueError("refused")

    codes, gives_up = [], False
    outcome, _ = played(agent, NO_ROOM, says("Hello"))
    assert outcome["turns"] == 1
    assert codes == [(400, "context_length_exceeded"), (200, None)]
    gives_up = True
    with pytest.raises(ContextRefused):
        played(agent, NO_ROOM)


def test_what_a_player_raises_ends_the_episode():
    statuses, is_answered = [], threading.Event()

    def agent(base_url):
        statuses.append(ask(base_url, GOOD)[0])
        is_answered.set()

    with pytest.raises(CompletionFailed):
        played(agent, CompletionFailed("not finite"))
    assert is_answered.wait(30)
    assert statuses == [500]


def test_messages_that_the_policy_cannot_take_are_refused_once_others_were_answered():
    """A wrong configuration ends the run, an agent's wrong request does not."""
    answers = []

    def agent(base_url):
        answers.append(ask(base_url, GOOD))

    environment = Agent(agent)
    players = [Player([UserError("roles must alternate")]), Player([says("Hello")])]

    async def play(player):
        await environment.play({}, {"policy": player})

    async def episodes():
        wrong, right = players
        try:
            with pytest.raises(UserError, match="alternate"):
                await play(wrong)
            await play(right)
            await play(wrong)
        finally:
            await environment.close()

    asyncio.run(episodes())
    status, answer = answers[-1]
    assert (status, answer["error"]["code"]) == (400, "unsupported_messages")
    assert "roles must alternate" in answer["error"]["message"]


def test_calls_of_any_characters_are_answered():
    """JSON may escape half of a surrogate pair, which is no character."""
    half, odd = "\ud83d", "\x01\u2028\U0001f600"

    def agent(base_url):
        (call,) = chat(base_url, user(half))["tool_calls"]
        call["function"]["arguments"].encode()
        assert json.loads(call["function"]["arguments"]) == {odd: odd}
        chat(base_url, user(half), {"role": "assistant", "content": "", "tool_calls": [call]})

    call = ToolCall(half, {odd: odd})
    outcome, player = played(agent, says("<add>", call, content=""))
    assert (outcome["turns"], outcome["drifts"]) == (2, 0)
    assert player.contexts[1][0] == user(half)


def test_a_request_that_a_client_repeats_is_answered_once():
    def agent(base_url):
        first = ask(base_url, GOOD, headers={"x-stainless-retry-count": "0"})
        assert ask(base_url, GOOD, headers={"x-stainless-retry-count": "1"}) == first
        second = ask(base_url, GOOD)
        assert second[1]["id"] != first[1]["id"]
        other = ask(base_url, {**GOOD, "messages": [user("Why?")]})
        # Not only the latest, and whatever the order of its fields.
        body = dict(reversed(GOOD.items()))
        assert ask(base_url, body, headers={"x-stainless-retry-count": "1"}) == second
        assert other[1]["id"] not in (first[1]["id"], second[1]["id"])

    outcome, player = played(agent, says("Hello"))
    assert outcome["turns"] == len(player.contexts) == 3


def test_laws():
    """Three requests, after pauses that differ."""

    def agent(base_url, prompt):
        messages = [user(prompt)]
        for _ in range(3):
            time.sleep(random.random() / 100)
            messages.append(chat(base_url, *messages))
            calls = messages[-1].get("tool_calls")
            if not calls:
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls
            ]
        return {"reward": len(messages)}

    def model(messages, generator):
        return generator.choice(["Hello", ADD, [ADD, ToolCall("", fault="it names no function")]])

    rows = [{"prompt": "1+2?"}, {"prompt": "Hi"}]
    check_environment(Agent(agent), rows, model, episodes=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "set `run` or `command`"), ({"run": "a:b", "command": ["c"]}, "and not both")],
)
def test_one_agent_is_configured(options, words):
    with pytest.raises(ValueError, match=words):
        Agent.Config(**options)


def test_an_agent_with_an_argument_that_nothing_gives():
    def agent(base_url, question):
        pass

    with pytest.raises(UserError, match="'question', and can be given prompt, row, base_url"):
        played(agent, says("Hello"))


def test_an_agent_that_returns_neither_columns_nor_a_reward():
    def agent(base_url):
        return "well done"

    with pytest.raises(UserError, match="returned str, expected columns"):
        played(agent, says("Hello"))
