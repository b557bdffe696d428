"""The word game of the examples: as a class for TRL's trainers, and behind an OpenEnv server."""

import json
from pathlib import Path
from random import Random

import pytest
from tests.agents.scripted import play, say

from groupwise.config.load import load_config
from groupwise.run.train import train_from_config
from groupwise.testing import check_environment
from groupwise_agents.trl.environment import TRLEnvironment

EXAMPLES = Path(__file__).parents[2] / "examples"
GUESSES = ("abd", "acc", "aaa", "acb", "acd")
READ = ["a+ b- d+", "a+ c+ c-", "a+ a- a-", "a+ c+ b-"]
"""What is answered to them where the word is acd; a fifth guess is one too many."""


@pytest.fixture
def example(monkeypatch):
    """Its modules can be imported."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def answers(player):
    return [own["content"] for own in player.contexts[-1] if own["role"] == "tool"]


@pytest.mark.usefixtures("example")
def test_four_guesses_are_answered_and_the_word_ends_the_game():
    from word_game.game import WordGame

    row = {"prompt": "Guess the word.", "game": 1, "word": "acd"}
    environment = TRLEnvironment(WordGame)
    won = [say(guess={"word": word}) for word in ("abd", "acd", "acd")]
    outcome, player = play(environment, row, *won, say("done"))
    assert answers(player)[:2] == ["a+ b- d+", "a+ c+ d+"]
    assert (outcome["reward"], outcome["call_errors"]) == (1.0, 1)  # after the end
    lost = [say(guess={"word": word}) for word in GUESSES]
    outcome, player = play(environment, row, *lost, say("done"))
    assert answers(player) == [*READ, "{'error': 'the game is over'}"]
    assert (outcome["reward"], outcome["call_errors"]) == (0.0, 1)
    wrong = [say(guess={"word": "abcd"}), say(guess={"word": "acd"})]
    outcome, _ = play(environment, row, *wrong, say("done"))
    assert (outcome["reward"], outcome["call_errors"]) == (1.0, 1)


@pytest.mark.usefixtures("example")
def test_it_keeps_the_laws():
    from word_game.game import WordGame
    from word_game.words import WORDS, Words

    def model(messages, random):
        call = {"function": {"name": "guess", "arguments": {"word": random.choice(WORDS)}}}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]

    check_environment(TRLEnvironment(WordGame, turns=5), [Words()[0], Words()[1]], model)


@pytest.mark.usefixtures("example")
def test_the_server_plays_the_same_game(tmp_path):
    pytest.importorskip("openenv")
    from openenv.core.env_server.mcp_types import CallToolAction
    from openenv.core.env_server.types import Observation
    from tests.agents.openenv_server import served
    from word_game.server import WordServer
    from word_game.words import WORDS

    from groupwise_agents.openenv.environment import OpenEnv

    seed = next(n for n in range(1000) if Random(n).choice(WORDS) == "acd")
    with served(WordServer, CallToolAction, Observation, sessions=16) as url:
        environment = OpenEnv(OpenEnv.Config(base_url=url, turns=5))
        row = {"prompt": "Guess the word."}
        lost = [say(guess={"word": word}) for word in GUESSES]
        outcome, player = play(environment, row, *lost, seed=seed)
        assert answers(player) == READ[:3]  # the fourth guess ends the game
        assert (outcome["reward"], outcome["ended"], outcome["turns"]) == (0.0, "tool", 4)
        won = [say(guess={"word": word}) for word in ("abd", "acd")]
        outcome, _ = play(environment, row, *won, seed=seed)
        assert (outcome["reward"], outcome["ended"], outcome["turns"]) == (1.0, "tool", 2)
        result = train(tmp_path, "word_game_openenv", f"environment.base_url={url}")
    assert "done" not in {own["completion"][-1]["content"] for own in result}


@pytest.mark.usefixtures("example")
@pytest.mark.slow
def test_two_steps_as_a_class(tmp_path):
    for sample in train(tmp_path, "word_game"):
        marks = [own["content"] for own in sample["completion"] if own["role"] == "tool"]
        assert sample["extra"]["calls"] == len(marks) <= 4
        assert sample["extra"]["reward"] == (marks[-1].count("+") == 3)


def train(tmp_path, name, *overrides):
    """The samples before two steps of an example."""
    overrides = [*overrides, "train.steps=2", "train.groups_per_step=2", "train.group_size=4"]
    overrides += ["evaluation.prompts=8", "evaluation.every=0", f"output={tmp_path / 'run'}"]
    loaded = load_config(EXAMPLES / f"{name}.yaml", overrides)
    assert train_from_config(loaded, quiet=True).steps == 2
    lines = (tmp_path / "run" / "samples" / "before.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
