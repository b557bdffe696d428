"""`groupwise plugins`: the list of what is registered, and the page of one name."""

import inspect
import json
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel
from tests.command_line import call

from groupwise import Policy
from groupwise import registry as plugins
from groupwise.algorithms.grpo import GRPO
from groupwise.hookspecs import Register, hookimpl
from groupwise_commands import docstrings
from groupwise_commands.catalog import catalog
from groupwise_commands.page import page


class Toy(Policy):
    class Config(BaseModel):
        width: int = 1


def right(prompts: Any, completions: Any) -> list[float]:
    return [1.0 for _ in completions]


def strict(prompts: Any, completions: Any, strict: bool, limit: int = 3) -> list[float]:
    return [1.0 for _ in completions]


class Plugin:
    @hookimpl
    def register_policies(self, register: Register) -> None:
        register("toy", "listed_plugins:Toy")

    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right", "listed_plugins:right")
        register("heavy", "nowhere:Heavy", extra="math")
        register("right_too", "listed_plugins:strict")


class Rival:
    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right_too", "rival:right")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> plugins.Registry:
    """The names of the core, of a plugin, of one with a clashing name and of a broken one."""
    module = ModuleType("listed_plugins")
    vars(module).update(Toy=Toy, right=right, strict=strict, good=Plugin(), rival=Rival())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    values = {
        "groupwise": "groupwise.builtins",
        "commands": "groupwise_commands.plugin",
        "good": "listed_plugins:good",
        "rival": "listed_plugins:rival",
        "broken": "no_such_module.plugin",
    }
    points = (EntryPoint(name=k, value=v, group="groupwise") for k, v in values.items())
    discovered = plugins.discover(points)
    monkeypatch.setattr(plugins, "installed", lambda: discovered)
    monkeypatch.setattr(
        plugins, "missing_requirements", lambda entry: ["sympy"] if entry.extra == "math" else []
    )
    return discovered


def test_plugins_lists_each_name_with_its_summary() -> None:
    result = call("plugins")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert f"grpo {docstrings.line('groupwise.algorithms.grpo:GRPO')}" in lines
    assert "heavy (not installed)" in lines
    assert "pip install '?[math]': heavy" in lines
    assert "groupwise.algorithms" not in result.stdout  # module paths are only in --json
    assert "plugin 'broken' could not be loaded: ModuleNotFoundError" in result.stdout
    assert "'right_too' in rewards is registered by several plugins; name one" in result.stdout
    assert "good/right_too or rival/right_too" in result.stdout


@pytest.mark.parametrize(
    "render", [catalog, lambda all_of, width: page(all_of.of_name("grpo"), width)]
)
def test_output_of_plugins_fits_the_width_of_the_terminal(
    registry: plugins.Registry, render: Any
) -> None:
    assert max(map(len, render(registry, 80).plain.splitlines())) <= 80


def test_plugins_name_shows_the_options_of_a_config() -> None:
    """With type, default, limits and description."""
    text = call("plugins", "grpo").stdout
    field = GRPO.Config.model_fields["epsilon"]
    assert f"  epsilon: {field.default}  (number, > 0)\n      {field.description}\n" in text
    assert "algorithm: {name: grpo}" in text
    assert "source: groupwise.algorithms.grpo:GRPO, of plugin groupwise" in text
    (advice,) = [line for line in text.splitlines() if line.startswith("  When to use it: ")]
    assert text.count(advice) == 1


def test_plugins_name_shows_the_arguments_of_a_function() -> None:
    text = call("plugins", "toy").stdout
    assert "policy: {name: toy}" in text
    assert "width: 1  (whole number)" in text
    text = call("plugins", "good/right_too").stdout
    assert "strict: ...  (true or false, required)\n  limit: 3  (whole number)" in text
    assert "prompts:" not in text


def test_a_name_that_cannot_be_imported_is_explained() -> None:
    result = call("plugins", "heavy")
    assert result.exit_code == 0
    assert "cannot import 'nowhere'" in result.stdout
    assert "needs:  pip install '?[math]'" in result.stdout


def test_a_name_of_two_kinds_shows_both(registry: plugins.Registry) -> None:
    twin = replace(registry.named("rewards", "right")[0], kind="callbacks")
    registry.entries.append(twin)
    text = call("plugins", "right").stdout
    assert "right  reward\n" in text
    assert "right  callback\n" in text
    kinds = [e["kind"] for e in json.loads(call("plugins", "right", "--json").stdout)["entries"]]
    assert kinds == ["rewards", "callbacks"]


@pytest.mark.parametrize("arguments", [["gpro"], ["gpro", "--json"]])
def test_an_unknown_name_gets_a_suggestion(arguments: list[str]) -> None:
    result = call("plugins", *arguments)
    assert result.exit_code == 2
    assert "no plugin registers 'gpro', did you mean 'grpo'?" in result.stderr
    assert "plugin 'broken' may register it, but could not be loaded" in result.stderr


def test_plugins_that_are_switched_off_are_named(registry: plugins.Registry) -> None:
    registry.switched_off.append("loud")
    assert "switched off by GROUPWISE_WITHOUT: loud" in call("plugins").stdout
    assert json.loads(call("plugins", "--json").stdout)["switched_off"] == ["loud"]


def test_a_misspelt_name_in_groupwise_without_is_named(registry: plugins.Registry) -> None:
    registry.misnamed["laud"] = ", did you mean 'loud'?"
    warning = "GROUPWISE_WITHOUT names 'laud', and no plugin is called so, did you mean 'loud'?"
    assert warning in call("plugins").stdout


def test_plugins_json_has_entries_failures_and_duplicates() -> None:
    record = json.loads(call("plugins", "--json").stdout)
    heavy = {
        "kind": "rewards",
        "name": "heavy",
        "target": "nowhere:Heavy",
        "extra": "math",
        "plugin": "good",
        "distribution": "?",
        "line": "",
        "when": "",
        "missing": ["sympy"],
    }
    assert heavy in record["entries"]
    assert list(record["failures"]) == ["broken"]
    assert record["duplicates"] == [
        {"kind": "rewards", "name": "right_too", "plugins": ["good", "rival"]}
    ]


def test_the_docstring_of_a_value_is_the_string_below_it() -> None:
    target = "groupwise_commands.init:app"
    assert docstrings.line(target).startswith("Write a configuration")
    assert docstrings.line("groupwise_commands.init:nothing") == ""
    forward = docstrings.docstring("groupwise.policy:Policy.forward")
    assert forward == inspect.getdoc(Policy.forward)
