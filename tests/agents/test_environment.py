"""The environment `tools`: laws, its section of a configuration, and models without tools."""

import random
from pathlib import Path

import pytest
from tests import tiny_model
from typer.testing import CliRunner

from groupwise import ToolCall, testing
from groupwise.cli import app
from groupwise.kit.errors import UserError
from groupwise_agents.tools import Tools

MODULE = '''
def add(left: int, right: int) -> int:
    """Add two numbers.

    Args:
        left: one number
        right: the other
    """
    return left + right


def untyped(left):
    """Has no type hint."""
'''
CONFIG = """
policy: {{name: language_model, model: {model}, max_new_tokens: 16, max_prompt_tokens: {tokens}}}
environment: {environment}
prompts: {{name: dataset, path: rows.jsonl, held_out: 0}}
rewards: [{{name: exact_answer}}]
train: {{steps: 1, groups_per_step: 2, group_size: 4}}
evaluation: {{prompts: 0}}
"""


def add(left: int, right: int) -> int:
    """Add two numbers.

    Args:
        left: one number
        right: the other
    """
    return left + right


@pytest.fixture
def check(tmp_path, monkeypatch):
    """check(environment): the output of `groupwise check` of a run with this environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    rows = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n'
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "tools_of_this_test.py").write_text(MODULE, encoding="utf-8")

    def run(environment, *, model=None, tokens=64):
        config = tmp_path / "run.yaml"
        model = model or tiny_model.folder()
        text = CONFIG.format(model=model, environment=environment, tokens=tokens)
        config.write_text(text, encoding="utf-8")
        return CliRunner().invoke(app, ["check", str(config)])

    return run


def test_laws():
    calls = [
        ToolCall("add", {"left": 1, "right": 2}),
        ToolCall("add", {"left": "one"}),
        ToolCall("", fault="the call names no function"),
    ]

    def model(messages, chance: random.Random):
        return chance.choice(["3", *calls, [calls[0], calls[1]]])

    rows = [{"prompt": "1+2="}, {"prompt": [{"role": "user", "content": "2+2="}]}]
    testing.check_environment(Tools([add], turns=3), rows, model)


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ("{name: tools, tools: ['tools_of_this_test:ad']}", "has no 'ad', did you mean 'add'?"),
        ("{name: tools, tools: [add]}", "expected module:function, found 'add'"),
        ("{name: tools, tools: ['tools_of_this_test:untyped']}", "missing a type hint"),
        ("{name: tools, tools: ['tools_of_this_test:add', 'tools_of_this_test:add']}", "two tools"),
        ("{name: tools}", "there are no tools"),
        ("{name: tools, tools: ['tools_of_this_test:add'], turn: 3}", "did you mean 'turns'?"),
        ("{name: tools, tools: ['tools_of_this_test:add']}", "does not show tools"),
    ],
)
def test_mistakes_are_shown_before_the_run(check, environment, problem):
    result = check(environment)
    assert result.exit_code == 2
    assert problem in result.output


@pytest.mark.slow
def test_prompts_are_checked_with_the_tools_that_are_shown(check):
    environment = "{name: tools, tools: ['tools_of_this_test:add']}"
    model = Path(__file__).parents[2] / "examples" / "calculator" / "base"
    for tokens, code in ((12, 0), (11, 2)):  # the prompt alone has 8 of them
        result = check(environment, model=model, tokens=tokens)
        assert result.exit_code == code, result.output
    assert "a prompt of 12 tokens is longer than policy.max_prompt_tokens: 11" in result.output


def test_one_policy_calls_the_tools():
    with pytest.raises(UserError, match="there are 2 players"):
        Tools([add]).casts(["one", "other"])
