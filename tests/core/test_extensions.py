"""Commands that plugins add to the command line."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from groupwise.cli import app
from groupwise.errors import UserError
from groupwise.hookspecs import hookimpl
from groupwise.plugins import registry as plugins


def count(words: list[str], twice: Annotated[bool, typer.Option("--twice")] = False) -> None:
    """Count words."""
    if not all(words):
        raise UserError("expected words, found an empty one")
    typer.echo(len(words) * (1 + twice))


class Plugin:
    @hookimpl
    def register_commands(self, register):
        register("count", "extension_test:count")
        register("train", "extension_test:count")
        register("broken", "extension_test:nothing")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    module = ModuleType("extension_test")
    module.plugin, module.count = Plugin(), count
    monkeypatch.setitem(sys.modules, module.__name__, module)
    point = EntryPoint(name="extension", value="extension_test:plugin", group="groupwise")
    registry = plugins.discover(iter([point]))
    assert registry.failures == {}
    monkeypatch.setattr(plugins, "installed", lambda: registry)


def call(*arguments):
    return CliRunner().invoke(app, arguments)


def test_the_command_of_a_plugin_is_one_of_groupwise():
    result = call("count", "one", "two", "--twice")
    assert (result.exit_code, result.stdout) == (0, "4\n"), result.output
    assert "│ count    Count words." in call("--help").stdout
    assert "Did you mean 'count'?" in call("cuont").stderr
    result = call("count", "")
    assert (result.exit_code, result.stderr) == (2, "error: expected words, found an empty one\n")
    assert "groupwise count --help" in call("plugins", "count").stdout


def test_the_command_of_a_plugin_replaces_none_of_the_core():
    assert "CONFIG" in call("train", "--help").stdout


def test_a_command_that_cannot_be_loaded_says_why_and_breaks_no_other():
    result = call("broken", "--any", "thing")
    assert result.exit_code == 2
    assert result.stderr == "error: command 'broken': 'extension_test' has no 'nothing'\n"
    assert call("--help").exit_code == 0
    assert call("count", "one").exit_code == 0
