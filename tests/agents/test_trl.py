"""TRL's environment classes: the same schemas, messages and rewards as with its own trainer."""

import asyncio
import gc
import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from tests.agents.scripted import play, say
from tests.agents.word_game import Silent, WordGame, solved

from groupwise.environment import Reply
from groupwise.kit.errors import UserError
from groupwise.testing import check_environment, check_reward
from groupwise.tool_call import ToolCall
from groupwise_agents.ordered import OrderedToolbox
from groupwise_agents.rewards import environment_reward
from groupwise_agents.trl.environment import TRLEnvironment
from groupwise_agents.trl.pool import Pool

ROW = {"prompt": [{"role": "user", "content": "Guess."}], "word": "cat"}


def test_a_class_is_played_as_it_is():
    outcome, player = play(
        TRLEnvironment(WordGame),
        ROW,
        say(guess={"word": "cow"}),
        say(guess={"word": "cat"}),
        say("!"),
    )
    assert player.contexts[0] == [{"role": "user", "content": "Guess. It has 3 letters."}]
    answers = [message for message in player.contexts[-1] if message["role"] == "tool"]
    assert answers == [
        {"role": "tool", "name": "guess", "content": "+--"},
        {"role": "tool", "name": "guess", "content": "+++"},
    ]
    assert [tool["function"]["name"] for tool in player.tools] == ["guess", "hint"]
    assert (outcome["turns"], outcome["calls"], outcome["call_errors"]) == (3, 2, 0)
    assert solved(environments=[outcome["environments"]]) == [1.0]
    assert environment_reward(reward=[outcome["reward"]]) == [0.5]


def test_a_configuration_names_classes_and_further_tools():
    names = {"game": "tests.agents.word_game:WordGame"}
    config = TRLEnvironment.Config(factory=names, tools=[f"{__name__}:shout"], turns=1)
    row = TRLEnvironment(config).opening({**ROW, "environment": "game"})
    assert [tool["function"]["name"] for tool in row["tools"]] == ["shout", "guess", "hint"]
    config = TRLEnvironment.Config(factory=names["game"])
    assert play(TRLEnvironment(config), ROW, say())[0]["turns"] == 1


def shout(text: str) -> str:
    """Say it loudly.

    Args:
        text: what is said
    """
    return text.upper()


def test_an_exception_is_an_answer_in_trls_form_and_counted():
    outcome, player = play(
        TRLEnvironment(WordGame), ROW, say(guess={"word": "horse"}), say(hint={"place": 9}), say()
    )
    answers = [message["content"] for message in player.contexts[-1] if message["role"] == "tool"]
    assert answers == [
        str({"error": "'horse' has not 3 letters"}),
        str({"error": "string index out of range"}),
    ]
    assert outcome["call_errors"] == 2
    assert outcome["reward"] == 0.0


def test_calls_of_a_turn_are_made_one_after_the_other_in_their_order():
    running, log = threading.Lock(), []

    class Slow:
        def reset(self, **row):
            pass

        def step(self, number: int) -> int:
            """Go a step.

            Args:
                number: Its number.
            """
            assert running.acquire(blocking=False), "two calls at once"
            log.append(number)
            time.sleep(0.002)
            running.release()
            return number

    calls = tuple(ToolCall("step", {"number": number}) for number in (2, 0, 1))
    outcome, player = play(TRLEnvironment(Slow), ROW, Reply("", "policy", calls=calls), say())
    assert log == [2, 0, 1]
    assert [each["content"] for each in player.contexts[-1][-3:]] == ["2", "0", "1"]
    assert outcome["call_errors"] == 0


def test_the_column_environment_chooses_a_class_and_only_its_tools():
    environment = TRLEnvironment({"game": WordGame, "silent": Silent})
    given = []

    class Seen(Silent):
        def reset(self, **row):
            given.append(row)

    outcome, player = play(
        environment, {**ROW, "environment": "silent"}, say(answer_with={"text": "a"}), say()
    )
    assert [tool["function"]["name"] for tool in player.tools] == ["answer_with"]
    assert player.contexts[0] == ROW["prompt"]
    assert player.contexts[-1][-1]["content"] == "noted"  # content blocks
    assert environment_reward(reward=[outcome["reward"]]) == [None]  # not 0
    play(TRLEnvironment({"seen": Seen}), {**ROW, "environment": "seen"}, say())
    assert given == [ROW]  # the column that chooses is not passed on
    with pytest.raises(UserError, match=r"'gane'.*did you mean 'game'"):
        environment.opening({**ROW, "environment": "gane"})


def test_objects_are_constructed_once_and_not_reset_while_a_reward_may_read_them():
    made = []

    class Counted(WordGame):
        def __init__(self):
            super().__init__()
            made.append(self)

    environment = TRLEnvironment(Counted)
    assert len(made) == 1  # before the run
    outcome, _ = play(environment, ROW, say(guess={"word": "cat"}), say())
    other, _ = play(environment, {**ROW, "word": "dog"}, say())
    assert len(made) == 2
    assert outcome["environments"].secret == "cat"
    del outcome, other
    gc.collect()
    for word in ("owl", "hen"):
        play(environment, {**ROW, "word": word}, say())
        gc.collect()
    assert len(made) == 2
    assert {each.secret for each in made} == {"owl", "hen"}


def test_further_objects_are_constructed_beside_the_event_loop():
    threads = []

    class Slow(WordGame):
        def __init__(self):
            threads.append(threading.current_thread())

    environment = TRLEnvironment(Slow)
    held = [play(environment, ROW, say()) for _ in range(2)]
    assert len(held) == len(threads) == 2
    assert threads[1] is not threading.main_thread()


def test_a_method_that_hangs_is_abandoned_with_its_object():
    release, made = threading.Event(), []

    class Hangs:
        def __init__(self):
            made.append(self)

        def reset(self, **row):
            pass

        def wait(self) -> str:
            """Wait."""
            release.wait()
            return "done"

    async def hang(pool):
        instance = await pool.take()
        toolbox = OrderedToolbox(instance.tools, deadline=0.01)
        first = await toolbox.answers([ToolCall("wait")])
        toolbox.deadline = 60.0
        second = await toolbox.answers([ToolCall("wait")])
        pool.put(instance)
        assert await pool.take() is not instance
        return [*first.messages, *second.messages]

    pool = Pool(Hangs, "Hangs")
    try:
        first, second = asyncio.run(hang(pool))
        assert "did not answer" in first["content"]
        assert second["content"] == str({"error": "an earlier call has not ended"})
        assert len(made) == 2
    finally:
        release.set()


def test_a_reset_that_hangs_fails_its_episode():
    class Hangs(WordGame):
        async def reset(self, **row):
            await asyncio.sleep(60)

    with pytest.raises(Exception, match=r"Hangs\.reset took more than 0\.01 s"):
        play(TRLEnvironment(Hangs, deadline=0.01), ROW, say())


def test_a_reset_receives_the_seed_that_a_group_shares():
    class Chance(WordGame):
        def reset(self, seed=None, **row):
            self.secret = random.Random(seed).choice(["cat", "dog", "owl", "hen"])

    environment = TRLEnvironment(Chance)
    secrets = [
        play(environment, ROW, say(), seed=seed)[0]["environments"].secret for seed in (5, 5)
    ]
    assert secrets[0] == secrets[1] == random.Random(5).choice(["cat", "dog", "owl", "hen"])
    of_row, _ = play(environment, {**ROW, "seed": 7}, say(), seed=5)
    assert of_row["environments"].secret == random.Random(7).choice(["cat", "dog", "owl", "hen"])


@pytest.mark.parametrize("hidden", [True, False])
def test_beginnings_that_differ_within_a_group_are_warned_of(capsys, hidden):
    words = iter(["cat", "dog", "owl"])

    class Chance(WordGame):
        def reset(self, **row):
            word = next(words)
            self.secret = word if hidden else ""
            return None if hidden else word

    environment = TRLEnvironment(Chance)
    held = [play(environment, ROW, say(), seed=1) for _ in range(2)]
    held += [play(environment, ROW, say(), seed=2)]  # another group may begin differently
    assert len(held) == 3
    (warning,) = capsys.readouterr().err.splitlines()
    what = "`secret`" if hidden else "observation"
    assert f"Chance: two episodes of the same prompt begin with different {what}" in warning
    assert "'cat' and 'dog'" in warning


def test_groups_that_begin_alike_are_not_warned_of(capsys):
    environment = TRLEnvironment(WordGame)
    held = [
        play(environment, {**ROW, "word": word}, say(), seed=len(word)) for word in ("cat", "horse")
    ]
    held += [play(environment, ROW, say(), seed=3)]
    assert len(held) == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("differ", [True, False])
def test_beginnings_with_arrays_are_compared_by_their_pixels(capsys, differ):
    levels = iter([1, 2 if differ else 1])

    class Seen(WordGame):
        def reset(self, **row):
            self.secret = "cat"
            self.screen = np.full((4, 4, 3), next(levels), dtype=np.uint8)
            return [{"type": "text", "text": "Look:"}, {"type": "image", "image": self.screen}]

    environment = TRLEnvironment(Seen)
    held = [play(environment, ROW, say(), seed=1) for _ in range(2)]
    assert [player.contexts[0][-1]["content"][-1]["image"].shape for _, player in held] == [
        (4, 4, 3)
    ] * 2
    assert ("begin with different observation" in capsys.readouterr().err) == differ


class NoReset:
    def guess(self, word: str) -> str:
        """Guess.

        Args:
            word: It.
        """
        return word


class NoHints(WordGame):
    def step(self, word):
        """Step."""


class Broken(WordGame):
    def __init__(self):
        raise OSError("no such file")


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        (NoReset, "environment 'NoReset' has no method `reset`"),
        (NoHints, "tool 'step'.*type hints"),
        (Broken, "environment 'Broken' cannot be constructed: OSError: no such file"),
        ({}, "found none"),
    ],
)
def test_bad_classes_are_refused_before_the_run(factory, problem):
    with pytest.raises(UserError, match=problem):
        TRLEnvironment(factory)


def test_two_tools_of_one_name_and_a_reset_without_columns_are_refused():
    def guess(word: str) -> str:
        """Guess.

        Args:
            word: It.
        """
        return word

    class Narrow(WordGame):
        def reset(self, word):
            pass

    with pytest.raises(UserError, match="two tools are named 'guess'"):
        TRLEnvironment(WordGame, tools=[guess])
    with pytest.raises(UserError, match=r"Narrow\.reset: .*'prompt'.*\*\*columns"):
        play(TRLEnvironment(Narrow), ROW, say())


def messages_under_trl(target, replies):
    """The messages of the completion that the tool loop of TRL's trainer makes of these replies."""
    from transformers.utils import get_json_schema
    from trl.trainer.grpo_trainer import GRPOTrainer

    left = [reply.message for reply in replies]
    tools = {name: getattr(target, name) for name in ("guess", "hint")}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    trainer = SimpleNamespace(
        max_tool_calling_iterations=9,
        max_completion_length=99,
        use_vllm=False,
        _is_vlm=False,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=99)),
        environment_factories={None: WordGame},
        _batch_environments=[None],
        _env_tools={None: [*tools.values()]},
        tools=[*tools.values()],
        _sync_tool_dicts=[{"guess": tools["guess"]}],
        _async_tool_dicts=[{"hint": tools["hint"]}],
        async_loop=loop,
        _tokenizer=SimpleNamespace(eos_token="", parse_response=lambda ids: dict(left.pop(0))),
        _get_tool_suffix_ids=lambda messages: [3],
        _generate_single_turn=lambda *_, **__: ([[1]], None),
    )
    completions = [[dict(left.pop(0))]]
    try:
        GRPOTrainer._tool_call_loop(
            trainer, [[*ROW["prompt"]]], [[1]], [[1]], completions, None, None, {}
        )
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return completions[0], [get_json_schema(tool) for tool in tools.values()]


def test_messages_and_schemas_are_those_of_trls_own_loop():
    replies = [
        say(guess={"word": "cow"}),
        say(hint={"place": 1}),
        say("so", guess={"word": "horse"}),
        say(guess={"word": "cat"}, hint={}),
        say("done"),
    ]
    target = WordGame()
    target.reset(**ROW)
    theirs, schemas = messages_under_trl(target, replies)
    outcome, player = play(TRLEnvironment(WordGame), ROW, *replies)
    assert player.tools == schemas
    assert [*player.contexts[-1][1:], replies[-1].message] == theirs
    assert outcome["reward"] == target.get_reward()


def test_the_laws_of_its_reward():
    rows = [ROW, {**ROW, "word": "dog"}]
    facts = {"reward": [0.5, None, 0.0, 1.0]}
    check_reward(environment_reward, rows, ["a", "b", "c", "d"], group_size=2, facts=facts)


def test_it_keeps_the_laws():
    def model(messages, chance):
        name, arguments = chance.choice(
            [
                ("guess", {"word": "cat"}),
                ("guess", {}),
                ("hint", {"place": 1}),
                ("hint", {"place": 9}),
            ]
        )
        call = {"function": {"name": name, "arguments": arguments}}
        calls = [call] * chance.randrange(3)
        return [{"role": "assistant", "content": "", **({"tool_calls": calls} if calls else {})}]

    rows = [ROW, {**ROW, "word": "dog"}]
    check_environment(TRLEnvironment(WordGame), rows, model)
