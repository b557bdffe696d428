"""OpenEnv's clients against a real server on this machine."""

import asyncio
import socket
import threading
from random import Random

import pytest
from tests.agents.scripted import Player, play, say

from groupwise.environment import ContextRefused, EpisodeEnded
from groupwise.kit.errors import UserError
from groupwise.testing import check_environment
from groupwise_agents.openenv.environment import OpenEnv
from groupwise_agents.tool import Unavailable

pytest.importorskip("openenv")

from openenv.core import GenericEnvClient, MCPToolClient
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult
from tests.agents.openenv_server import WORDS, all_closed, open_sessions, word_tools, words

ROW = {"prompt": "Guess a word.", "word": "cat"}


@pytest.fixture(scope="module")
def steps():
    with words() as url:
        yield url


@pytest.fixture(scope="module")
def tools():
    with word_tools() as url:
        yield url


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr("groupwise_agents.openenv.client.PATIENCE", 60.0)


def guess(text):
    """A step of `words`."""
    if " " in text:
        raise ValueError("write one word")
    return {"word": text}


def by_steps(url, **options):
    return OpenEnv(lambda: GenericEnvClient(base_url=url), action=guess, **options)


def test_completions_are_steps_until_the_environment_is_done(steps):
    environment = by_steps(steps, reset=["word"])
    outcome, player = play(environment, ROW, say("cow"), say("two words"), say("dog"), say("cat"))
    assert [message["content"] for message in player.contexts[-1]] == [
        "Guess a word.\nIt begins with c.",
        *("cow", "wrong"),
        *("two words", "error: write one word"),
        *("dog", "wrong"),
    ]
    assert outcome["reward"] == 1.25
    assert outcome["ended"] == "done"
    assert (outcome["turns"], outcome["call_errors"]) == (4, 1)


def test_a_configuration_names_functions_and_the_client_follows(steps, tools):
    named = {"base_url": steps, "action": f"{__name__}:guess", "reset": ["word"], "turns": 1}
    outcome, _ = play(OpenEnv(OpenEnv.Config(**named)), ROW, say("cat"))
    assert outcome["reward"] == 1.0
    (tool,) = OpenEnv(OpenEnv.Config(base_url=tools)).opening(ROW)["tools"]
    assert tool["function"]["name"] == "guess"
    sessions = OpenEnv(OpenEnv.Config(sessions=f"{__name__}:Sessions"))
    assert play(sessions, ROW, say("done"))[0]["reward"] == 0.5
    with pytest.raises(UserError, match="the column 'level', which the rows do not have"):
        play(OpenEnv(OpenEnv.Config(**{**named, "reset": ["level"]})), ROW, say("cat"))
    for wrong in ({}, {"sessions": "a:b", "action": "a:b"}):
        with pytest.raises(ValueError, match=r"needs `base_url`|neither"):
            OpenEnv.Config(**wrong)


def test_steps_without_a_reward_are_not_worth_0(steps):
    environment = by_steps(steps, reset=["word"], turns=2)
    outcome, _ = play(environment, ROW, say("dog"))
    assert outcome["reward"] is None
    assert outcome["ended"] == "turns"


def test_what_the_server_refuses_is_read_by_the_model(steps):
    environment = by_steps(steps, reset=["word"], turns=3)
    environment.action = lambda text: {"word": text} if text == "bug" else {"wort": text}
    outcome, player = play(environment, ROW, say("bug"), say("x"))
    answers = [each["content"] for each in player.contexts[-1] if each["role"] == "user"][1:]
    assert "a bug of the environment" in answers[0]
    assert "VALIDATION_ERROR" in answers[1]
    assert outcome["call_errors"] == 3


def test_a_group_shares_the_seed_of_the_reset(steps, capsys):
    environment = by_steps(steps, turns=1)
    first = [play(environment, ROW, say("x"), seed=seed)[1].contexts[0] for seed in (3, 3, 4)]
    secrets = [Random(seed).choice(WORDS) for seed in (3, 3, 4)]
    assert [each[0]["content"][-2] for each in first] == [secret[0] for secret in secrets]
    assert capsys.readouterr().err == ""


def test_a_reset_that_ignores_the_seed_is_warned_of(steps, capsys):
    starts = iter(["cat", "dog"])

    class Chance(GenericEnvClient):
        def reset(self, **_):
            return super().reset(word=next(starts))

    environment = OpenEnv(lambda: Chance(base_url=steps), action=guess, turns=1)
    for _ in range(2):
        play(environment, ROW, say("x"), seed=1)
    assert "begin with different observation" in capsys.readouterr().err


def test_calls_of_a_servers_tools_are_steps_with_rewards(tools):
    environment = OpenEnv(lambda: MCPToolClient(base_url=tools))
    secret = Random(5).choice(WORDS)
    replies = [say(guess={"word": "x"}), say(guess={"word": "cow"}), say(guess={"word": secret})]
    outcome, player = play(environment, ROW, *replies, seed=5)
    (schema,) = player.tools
    assert schema["function"]["name"] == "guess"
    assert schema["function"]["description"] == "Guess the word."
    assert schema["function"]["parameters"]["properties"]["word"]["type"] == "string"
    answers = [each["content"] for each in player.contexts[-1] if each["role"] == "tool"]
    assert "three letters" in answers[0]
    assert answers[1] == "wrong"
    assert outcome["reward"] == 1.0
    assert outcome["ended"] == "tool"
    assert outcome["call_errors"] == 1


def test_one_connection_an_episode_is_closed_also_after_errors(steps, tools):
    async def ended(*_, **__):
        raise EpisodeEnded("in the middle")

    async def many(environment, count):
        player = Player([say("x")])
        played = [environment.play(ROW, {"policy": player}, seed=n) for n in range(count)]
        return await asyncio.gather(*played, return_exceptions=True)

    for url, make in ((steps, by_steps), (tools, lambda url: OpenEnv(lambda: MCPToolClient(url)))):
        environment = make(url)
        outcomes = asyncio.run(many(environment, 8))  # as many as the server takes
        assert all(isinstance(each, dict) for each in outcomes)
        broken = Player([])
        broken.__class__ = type("Broken", (Player,), {"__call__": ended})
        with pytest.raises(EpisodeEnded):
            asyncio.run(environment.play(ROW, {"policy": broken}, seed=1))
        asyncio.run(many(environment, 8))
    assert all_closed()


def test_a_cancelled_episode_closes_its_connection(steps):
    async def cancelled():
        environment, reached = by_steps(steps), asyncio.Event()

        class Waits(Player):
            async def __call__(self, *_, **__):
                reached.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(environment.play(ROW, {"policy": Waits([])}, seed=0))
        await reached.wait()
        assert len(open_sessions) == 1
        task.cancel()
        await asyncio.wait({task})
        await environment.close()

    asyncio.run(cancelled())
    assert all_closed()


def test_a_full_server_ends_the_run_with_what_to_set(monkeypatch):
    async def both(environment):
        started = asyncio.Event()

        class Waits(Player):
            async def __call__(self, *_, **__):
                started.set()
                await asyncio.Event().wait()

        first = asyncio.create_task(environment.play(ROW, {"policy": Waits([])}))
        await started.wait()
        monkeypatch.setattr("groupwise_agents.openenv.client.PATIENCE", 0.0)
        try:
            await environment.play(ROW, {"policy": Player([say("x")])})
        finally:
            first.cancel()
            await asyncio.wait({first})

    with words(sessions=1) as url, pytest.raises(UserError, match="max_concurrent_envs"):
        asyncio.run(both(by_steps(url)))


def test_a_server_that_is_away_is_one_sentence_before_the_run():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for make in (by_steps, lambda url: OpenEnv(lambda: MCPToolClient(base_url=url))):
            with pytest.raises(UserError, match=rf"{url} cannot be reached.*running\?"):
                make(url)


def test_an_answer_that_is_late_fails_the_episode(steps):
    class Late(GenericEnvClient):
        async def _step_async(self, action, **_):
            raise TimeoutError

    environment = OpenEnv(lambda: Late(base_url=steps), action=guess)
    with pytest.raises(Unavailable, match="did not answer within 30 s"):
        play(environment, ROW, say("cat"))
    assert all_closed()


def test_an_action_may_fail_at_capacity(steps):
    class Hotel(GenericEnvClient):
        async def _step_async(self, action, **_):
            raise RuntimeError("the hotel is at capacity")

    environment = OpenEnv(lambda: Hotel(base_url=steps), action=guess, turns=2)
    outcome, player = play(environment, ROW, say("cat"))
    assert player.contexts[-1][-1]["content"] == "error: the hotel is at capacity"
    assert outcome["call_errors"] == 2


def test_it_keeps_the_laws(steps):
    def model(messages, chance):
        return chance.choice(["cat", "dog", "owl", "two words"])

    environment = by_steps(steps, turns=3)
    check_environment(environment, [ROW, {**ROW, "prompt": "Once more."}], model)
    assert all_closed()


class Session(ResourceSession):
    """Counts its calls, and states a reward of its own at the end."""

    def __init__(self, task, seed, log):
        self.task, self.seed, self.log, self.calls = task, seed, log, 0

    def initial_messages(self):
        return [{"role": "user", "content": f"{self.task['word']} {self.seed}"}]

    def list_tools(self):
        return [Tool(name="count", description="Count.", input_schema={})]

    def call_tool(self, name, arguments):
        self.calls += 1
        return ToolResult(data={"calls": self.calls}, done=self.calls == 2)

    def verify(self, transcript, final_state=None):
        self.log.append([message["role"] for message in transcript])
        return VerifyResult(env_reward=None if self.seed else 0.5)

    def close(self):
        self.log.append("closed")


class Sessions(ResourceSessionFactory):
    def __init__(self):
        self.log = []

    def create(self, task, seed=None, episode_id=None):
        return Session(task, seed, self.log)


def test_resource_sessions_are_episodes():
    factory = Sessions()
    environment = OpenEnv(sessions=factory)
    outcome, player = play(environment, ROW, say(count={}), say(count={}), seed=0)
    assert player.contexts[0] == [{"role": "user", "content": "cat 0"}]
    assert player.contexts[1][-1]["content"] == '{"calls": 1}'
    assert (outcome["reward"], outcome["ended"]) == (0.5, "tool")
    assert factory.log == [["user", "assistant", "tool", "assistant"], "closed"]
    outcome, _ = play(OpenEnv(sessions=Sessions), ROW, say("done"), seed=1)
    assert outcome["reward"] is None


def test_a_session_verifies_each_message_once_where_a_context_was_refused():
    class Short(Player):
        async def __call__(self, context, **options):
            if self.contexts:
                raise ContextRefused("too long")
            return await super().__call__(context, **options)

    factory = Sessions()
    environment = OpenEnv(sessions=factory)
    asyncio.run(environment.play(ROW, {"policy": Short([say(count={})])}))
    assert factory.log == [["user", "assistant", "tool"], "closed"]


@pytest.mark.parametrize("then", [say(count={}), say("done")])
def test_a_call_that_was_abandoned_loses_its_session(then):
    released = threading.Event()

    class Hangs(Session):
        def call_tool(self, name, arguments):
            self.log.append("call")
            released.wait()

    class Hanging(Sessions):
        def create(self, task, seed=None, episode_id=None):
            return Hangs(task, seed, self.log)

    factory = Hanging()
    try:
        with pytest.raises(Unavailable, match="the session was lost"):
            play(OpenEnv(sessions=factory, deadline=0.01), ROW, say(count={}), then)
    finally:
        released.set()
    assert factory.log == ["call", "closed"]


def test_a_session_that_is_made_after_its_episode_was_cancelled_is_closed():
    creating, released, closed = (threading.Event() for _ in range(3))

    class Closes(Session):
        def close(self):
            closed.set()

    class Slow(Sessions):
        def create(self, task, seed=None, episode_id=None):
            creating.set()
            released.wait()
            return Closes(task, seed, self.log)

    async def cancelled():
        environment = OpenEnv(sessions=Slow())
        task = asyncio.create_task(environment.play(ROW, {"policy": Player([])}))
        while not creating.is_set():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    try:
        asyncio.run(cancelled())
        assert not closed.is_set()
    finally:
        released.set()
    assert closed.wait(30)


def test_steps_of_a_client_as_openenvs_own_session(steps):
    """Its StepEnvSessionAdapter makes a session of a client of steps."""
    from openenv.core.harness import StepEnvSessionAdapter

    class Adapted(ResourceSessionFactory):
        def create(self, task, seed=None, episode_id=None):
            return StepEnvSessionAdapter(
                GenericEnvClient(base_url=steps),
                task=task,
                seed=seed,
                reset_kwargs={"word": task["word"]},
                tool_specs=[Tool(name="guess", description="Guess.", input_schema={})],
                action_builder=lambda name, arguments: arguments,
                initial_messages_builder=lambda begun, task: [
                    {"role": "user", "content": begun.observation["marks"]}
                ],
            )

    replies = [say(guess={"word": "cow"}), say(guess={"word": "cat"})]
    outcome, player = play(OpenEnv(sessions=Adapted), ROW, *replies)
    assert player.contexts[0] == [{"role": "user", "content": "It begins with c."}]
    assert outcome["reward"] == 1.0
    assert all_closed()
