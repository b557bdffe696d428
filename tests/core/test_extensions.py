"""Commands that plugins add to the command line."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Annotated

import pytest
import typer
from tests.command_line import call

from groupwise import registry as plugins
from groupwise.hookspecs import hookimpl
from groupwise.kit.errors import UserError


def count(words: list[str], twice: Annotated[bool, typer.Option("--twice")] = False) -> None:
    """Count words."""
    if not all(words):
        raise UserError("expected words, found an empty one")
    typer.echo(len(words) * (1 + twice))


tool = typer.Typer(help="Sort and count.")
tool.command()(count)


@tool.command()
def sort(words: list[str]) -> None:
    """Sort words."""
    typer.echo(" ".join(sorted(words)))


class Plugin:
    @hookimpl
    def register_commands(self, register):
        register("count", "extension_test:count")
        register("train", "extension_test:count")
        register("tool", "extension_test:tool")
        register("sample", "extension_test:count")
        register("broken", "extension_test:nothing")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    module = ModuleType("extension_test")
    module.plugin, module.count, module.tool = Plugin(), count, tool
    monkeypatch.setitem(sys.modules, module.__name__, module)
    values = {"extension": "extension_test:plugin", "commands": "groupwise_commands.plugin"}
    points = [EntryPoint(name, value, "groupwise") for name, value in values.items()]
    registry = plugins.discover(iter(points))
    assert registry.failures == {}
    monkeypatch.setattr(plugins, "installed", lambda: registry)


def test_the_command_of_a_plugin_is_one_of_groupwise():
    result = call("count", "one", "two", "--twice")
    assert (result.exit_code, result.stdout) == (0, "4\n"), result.output
    assert "│ count    Count words." in call("--help").stdout
    assert "Did you mean 'count'?" in call("cuont").stderr
    result = call("count", "")
    assert (result.exit_code, result.stderr) == (2, "error: expected words, found an empty one\n")
    assert "groupwise count --help" in call("plugins", "count").stdout


def test_a_plugin_may_register_an_application_with_commands_of_its_own():
    assert call("tool", "sort", "two", "one").stdout == "one two\n"
    assert "│ tool     Sort and count." in call("--help").stdout
    result = call("tool", "count", "")
    assert (result.exit_code, result.stderr) == (2, "error: expected words, found an empty one\n")
    assert "Did you mean 'sort'?" in call("tool", "srot").stderr


def test_the_command_of_a_plugin_replaces_none_of_the_core():
    assert "CONFIG" in call("train", "--help").stdout


def test_a_name_of_two_plugins_is_called_with_that_of_its_plugin():
    result = call("sample", "run", "--per-prompt", 1)
    assert result.exit_code == 2
    assert "command 'sample' is registered twice: by plugins 'extension'" in result.stderr
    assert "name one of them as 'extension/sample' or 'commands/sample'" in result.stderr
    assert call("extension/sample", "one").stdout == "1\n"


def test_only_the_called_command_is_loaded(monkeypatch):
    loaded, load = [], plugins.Registry.load

    def recording(self, kind, name, *others):
        loaded.append(name)
        return load(self, kind, name, *others)

    monkeypatch.setattr(plugins.Registry, "load", recording)
    assert call("count", "one").exit_code == 0
    assert loaded == ["count"]


def test_a_command_that_cannot_be_loaded_says_why_and_breaks_no_other():
    result = call("broken", "--any", "thing")
    assert result.exit_code == 2
    assert result.stderr == "error: command 'broken': 'extension_test' has no 'nothing'\n"
    assert call("--help").exit_code == 0
    assert call("count", "one").exit_code == 0
