"""Plugins: discovery and loading; a broken one affects no other, and errors name it."""

import inspect
import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent
from typing import get_args, get_origin

import pytest
from tests.core.conftest import Tabular, rows

import groupwise
from groupwise import hookspecs
from groupwise import registry as plugins
from groupwise.config.load import load_config
from groupwise.kinds import KINDS
from groupwise.kit.errors import UserError
from groupwise.kit.section import PluginSection, Section
from groupwise.registry import Entry, Registry, discover, missing_requirements
from groupwise_algorithms.sapo import SAPO
from groupwise_commands import docstrings

GOOD = """
from groupwise import hookimpl

@hookimpl
def register_rewards(register):
    register("{name}", "{module}_targets:reward")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that writes the module of a plugin and returns its entry point."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, source, targets=None):
        module = f"fake_{name}"
        (tmp_path / f"{module}.py").write_text(dedent(source))
        written.append(module)
        if targets is not None:
            (tmp_path / f"{module}_targets.py").write_text(dedent(targets))
            written.append(f"{module}_targets")
        return EntryPoint(name=name, value=module, group="groupwise")

    yield write
    for module in written:
        sys.modules.pop(module, None)


def working_plugin(install, plugin, name):
    return install(
        plugin,
        GOOD.format(name=name, module=f"fake_{plugin}"),
        f"def reward(completions):\n    return [{plugin!r}]\n",
    )


def names(registry):
    return [(entry.kind, entry.name, entry.plugin) for entry in registry.entries]


def test_registered_names_are_listed_and_loaded(install):
    registry = discover(
        iter([working_plugin(install, "one", "first"), working_plugin(install, "two", "second")])
    )
    assert names(registry) == [("rewards", "first", "one"), ("rewards", "second", "two")]
    assert registry.failures == {}
    assert registry.load("rewards", "second")([]) == ["two"]
    assert registry.entries[0] == Entry(
        kind="rewards",
        name="first",
        target="fake_one_targets:reward",
        extra=None,
        plugin="one",
        distribution="?",
    )


def test_targets_are_imported_only_when_loaded(install):
    registry = discover(iter([working_plugin(install, "one", "first")]))
    assert "fake_one_targets" not in sys.modules
    registry.load("rewards", "first")
    assert "fake_one_targets" in sys.modules


BROKEN = {
    "raises at import": ("raise RuntimeError('no such device')", "RuntimeError: no such device"),
    "exits at import": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "syntax": ("def (", "SyntaxError"),
    "missing module": ("import surely_not_installed", "ModuleNotFoundError: No module named"),
    "typo in a hook": (
        """
        from groupwise import hookimpl
        @hookimpl
        def register_rewards(register):
            register("lost", "m:f")
        @hookimpl
        def register_reward(register):
            register("lost too", "m:f")
        """,
        "PluginValidationError: unknown hook 'register_reward'",
    ),
    "typo in an argument": (
        """
        from groupwise import hookimpl
        @hookimpl
        def register_rewards(registre):
            pass
        """,
        "PluginValidationError",
    ),
    "raises in its second hook": (
        """
        from groupwise import hookimpl
        @hookimpl
        def register_policies(register):
            register("lost", "m:f")
        @hookimpl
        def register_rewards(register):
            raise KeyError("x")
        """,
        "KeyError: 'x'",
    ),
    "target without attribute": (
        """
        from groupwise import hookimpl
        @hookimpl
        def register_rewards(register):
            register("lost", "module")
        """,
        "ValueError: register('lost', 'module'): target must be 'module:attribute'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_reported_and_affects_no_other(install, case):
    source, reason = BROKEN[case]
    points = [
        working_plugin(install, "one", "first"),
        install("broken", source),
        working_plugin(install, "two", "second"),
    ]
    registry = discover(iter(points))
    # Names that the broken plugin registered before it failed are dropped, too.
    assert names(registry) == [("rewards", "first", "one"), ("rewards", "second", "two")]
    assert list(registry.failures) == ["broken"]
    assert registry.failures["broken"].startswith(reason)
    assert registry.load("rewards", "second")([]) == ["two"]
    with pytest.raises(UserError, match="plugin 'broken' may register it, but could not be loaded"):
        registry.load("rewards", "lost")


def test_the_second_of_two_entry_points_of_the_same_name_fails(install):
    first, second = (
        working_plugin(install, "one", "first"),
        working_plugin(install, "two", "second"),
    )
    second = EntryPoint(name="one", value=second.value, group="groupwise")
    registry = discover(iter([first, second]))
    assert names(registry) == [("rewards", "first", "one")]
    assert "one" in registry.failures


def test_the_error_for_a_duplicate_name_has_both_plugins(install):
    points = [working_plugin(install, plugin, "same") for plugin in ("one", "two")]
    registry = discover(iter([*points, working_plugin(install, "three", "other")]))
    message = r"reward 'same' is registered twice: by plugins 'one' \(.*\) and 'two' \(.*\)"
    with pytest.raises(UserError, match=message):
        registry.load("rewards", "same")
    assert registry.load("rewards", "other")([]) == ["three"]


def test_a_duplicate_name_is_loaded_with_its_plugin_as_prefix(install):
    points = [working_plugin(install, plugin, "same") for plugin in ("one", "two")]
    registry = discover(iter(points))
    for plugin in ("one", "two"):
        assert registry.load("rewards", f"{plugin}/same")([]) == [plugin]
    with pytest.raises(UserError, match="name one of them as 'one/same' or 'two/same'"):
        registry.load("rewards", "same")
    with pytest.raises(UserError, match="'somebody/model' is no reward's name"):
        registry.load("rewards", "somebody/model")
    assert discover(iter(points[:1])).load("rewards", "one/same")([]) == ["one"]


@pytest.mark.parametrize("name", ["oen/same", "one/smae", "another/same", "two/same"])
def test_a_misspelt_name_with_its_plugin_gets_a_suggestion(install, name):
    plugins = {"one": "same", "two": "some"}
    registry = discover(iter([working_plugin(install, *each) for each in plugins.items()]))
    with pytest.raises(UserError, match=f"unknown reward '{name}', did you mean 'one/same'?"):
        registry.load("rewards", name)


def test_a_registered_name_wins_over_a_name_with_a_plugin_as_prefix(install):
    plain, clashing = (
        working_plugin(install, "one", "same"),
        working_plugin(install, "two", "one/same"),
    )
    registry = discover(iter([plain, clashing]))
    assert registry.load("rewards", "one/same")([]) == ["two"]


@pytest.mark.parametrize("without", ["two", " two , three", "two,,"])
def test_plugins_that_are_switched_off_are_not_imported(install, monkeypatch, without):
    monkeypatch.setenv(plugins.SWITCHED_OFF, without)
    points = [
        working_plugin(install, "one", "first"),
        install("two", "raise RuntimeError('it was imported')"),
    ]
    registry = discover(iter(points))
    assert names(registry) == [("rewards", "first", "one")]
    assert registry.failures == {}
    assert registry.switched_off == ["two"]
    message = "registered are first\n  plugin 'two' may register it, but is switched off by GROUP"
    with pytest.raises(UserError, match=message):
        registry.load("rewards", "second")


def test_unknown_names_of_plugins_to_switch_off_are_reported(install, monkeypatch):
    monkeypatch.setenv(plugins.SWITCHED_OFF, "ome,,one")
    points = [working_plugin(install, plugin, plugin) for plugin in ("one", "omen")]
    assert discover(iter(points)).misnamed == {"ome": ", did you mean 'omen'?"}


def test_switching_one_plugin_off_resolves_a_duplicate_name(install, monkeypatch):
    points = [working_plugin(install, plugin, "same") for plugin in ("one", "two")]
    monkeypatch.setenv(plugins.SWITCHED_OFF, "one")
    assert discover(iter(points)).load("rewards", "same")([]) == ["two"]


def test_a_name_may_be_of_two_kinds(install):
    source = """
    from groupwise import hookimpl
    @hookimpl
    def register_rewards(register):
        register("same", "fake_both_targets:a")
    @hookimpl
    def register_callbacks(register):
        register("same", "fake_both_targets:b")
    """
    registry = discover(iter([install("both", source, "a = 1\nb = 2\n")]))
    assert registry.load("rewards", "same") == 1
    assert registry.load("callbacks", "same") == 2


def test_the_error_for_an_unknown_name_has_a_suggestion_and_all_names(install):
    registry = discover(iter([working_plugin(install, "one", "exact_match")]))
    message = "unknown reward 'exact_mach', did you mean 'exact_match'?; registered are exact_match"
    with pytest.raises(UserError) as caught:
        registry.load("rewards", "exact_mach")
    assert str(caught.value) == message
    with pytest.raises(UserError, match="unknown policy 'exact_match'; registered are none"):
        registry.load("policies", "exact_match")


# ---- targets


def test_a_name_may_be_a_module_and_an_attribute(install, tmp_path):
    (tmp_path / "fake_own.py").write_text("class Judge:\n    def score(self): ...\nrate = 3\n")
    registry = Registry()
    assert registry.load("rewards", "fake_own:rate") == 3
    assert registry.load("rewards", "fake_own:Judge.score").__name__ == "score"
    with pytest.raises(UserError, match="has no 'rat', did you mean 'rate'"):
        registry.load("rewards", "fake_own:rat")
    with pytest.raises(UserError, match="no module 'fake_nowhere'"):
        registry.load("rewards", "fake_nowhere:rate")
    with pytest.raises(UserError, match="has no ''"):
        registry.load("rewards", "fake_own:")
    sys.modules.pop("fake_own")


COUNTED = """
from pydantic import BaseModel, field_validator

VALIDATED, BUILT = [], []

class Counted:
    class Config(BaseModel):
        worth: float

        @field_validator("worth")
        @classmethod
        def _note(cls, worth):
            VALIDATED.append(worth)
            return worth

    def __init__(self, config):
        BUILT.append(config)

    def __call__(self, completions):
        return [BUILT[0].worth] * len(completions)
"""


def test_a_section_is_resolved_once_in_a_run(install, tmp_path):
    """What is checked before a run is what is built."""
    install("counted", "", COUNTED)
    groupwise.train(
        policy=Tabular(),
        prompts=rows(),
        rewards=[{"name": "fake_counted_targets:Counted", "worth": 2}],
        train={"steps": 1, "groups_per_step": 2, "group_size": 2},
        output=tmp_path / "run",
        quiet=True,
    )
    counted = sys.modules["fake_counted_targets"]
    assert counted.VALIDATED == [2.0]
    assert len(counted.BUILT) == 1


def test_the_error_names_a_target_that_fails_at_import(install):
    point = install("one", GOOD.format(name="first", module="fake_one"), "1 / 0\n")
    with pytest.raises(UserError, match="'first': importing 'fake_one_targets' raised ZeroDivis"):
        discover(iter([point])).load("rewards", "first")


EXTRA = """
from groupwise import hookimpl

@hookimpl
def register_rewards(register):
    register("heavy", "fake_one_targets:reward", extra="gpu")
    register("plain", "fake_one_targets:reward")
    register("wrong", "fake_one_nowhere:reward", extra="gpu")
"""


def test_a_missing_extra_is_named_with_its_distribution(install):
    point = install("one", EXTRA, "import surely_not_installed.part\n")
    registry = discover(iter([point]))
    entries = [
        Entry(**{**vars(entry), "distribution": "their-package"}) for entry in registry.entries
    ]
    registry = Registry(entries=entries)
    message = (
        r"'heavy' needs an extra: pip install 'their-package\[gpu\]' \(No module named 'surely"
    )
    with pytest.raises(UserError, match=message):
        registry.load("rewards", "heavy")
    with pytest.raises(UserError, match="'plain': cannot import"):
        registry.load("rewards", "plain")
    # An extra does not help if the module of the plugin itself is missing.
    with pytest.raises(UserError, match="'wrong': cannot import 'fake_one_nowhere'"):
        registry.load("rewards", "wrong")


def test_without_metadata_no_requirements_are_missing():
    entry = Entry(kind="rewards", name="x", target="m:f", extra="gpu", plugin="p", distribution="?")
    assert missing_requirements(entry) == []


# ---- built-in plugins


def own_entry_points():
    for folder in Path(__file__).parents:
        if (folder / "pyproject.toml").exists():
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            return project["entry-points"]["groupwise"]
    raise AssertionError("no pyproject.toml above the tests")


LISTING = """
import sys
from importlib.metadata import EntryPoint
from groupwise.registry import KINDS, discover

points = [EntryPoint(*point.split("="), "groupwise") for point in sys.argv[1:]]
registry = discover(iter(points))
assert not registry.failures, registry.failures
names = {(entry.kind, entry.name) for entry in registry.entries}
assert len(names) == len(registry.entries), "a name is registered twice"
for name in ("grpo", "dr_grpo", "dapo", "gspo"):
    assert ("algorithms", name) in names
for name in ("rows", "dataset"):
    assert ("prompts", name) in names
heavy = {"torch", "accelerate", "transformers", "datasets", "numpy", "diffusers", "sympy"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_listing_built_in_plugins_imports_no_heavy_package():
    points = [f"{name}={value}" for name, value in own_entry_points().items()]
    subprocess.run(
        [sys.executable, "-c", LISTING, *points],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_all_names_of_the_core_load():
    point = EntryPoint(name="groupwise", value="groupwise.builtins", group="groupwise")
    registry = discover(iter([point]))
    for entry in registry.entries:
        if entry.extra is None:
            assert registry.load(entry.kind, entry.name).Config


def test_every_hook_is_documented_and_is_a_kind():
    hooks = {
        name: function
        for name, function in vars(hookspecs).items()
        if inspect.isfunction(function) and hasattr(function, "groupwise_spec")
    }
    assert set(hooks) == {f"register_{kind}" for kind in KINDS}
    for name, function in hooks.items():
        assert inspect.getdoc(function), name
        assert list(inspect.signature(function).parameters) == ["register"], name


def test_every_section_that_names_a_plugin_is_in_the_table_of_kinds():
    players = [{"label": label, "policy": label} for label in ("a", "b")]
    config = load_config({"players": players, "prompts": "rows", "rewards": ["r"]}).config
    declared = {key for key in named_sections(type(config)) if not key.startswith("players[].")}
    assert declared == {key for kind in KINDS.values() for key in kind.sections}
    own = set(named_sections(type(config.players[0])))
    assert own == {key for kind in KINDS.values() if kind.of_learner for key in kind.sections}


def named_sections(model, prefix=""):
    """The dotted keys of a section that name plugins, with `[]` for the items of a list."""
    for name, info in model.model_fields.items():
        types = [info.annotation, *get_args(info.annotation)]
        types += [inner for each in types for inner in get_args(each)]
        sections = [each for each in types if isinstance(each, type) and issubclass(each, Section)]
        suffix = "[]" if any(get_origin(each) is list for each in types) else ""
        for section in sections:
            if issubclass(section, PluginSection):
                yield f"{prefix}{name}{suffix}"
            yield from named_sections(section, f"{prefix}{name}{suffix}.")


def test_every_built_in_name_has_a_one_line_summary():
    """Read without an import, as by `groupwise plugins`; other packages may have none."""
    points = (EntryPoint(name, value, "groupwise") for name, value in own_entry_points().items())
    lines = {e.name: docstrings.line(e.target) for e in discover(points).entries}
    assert [name for name, line in lines.items() if not line.endswith(".")] == []
    assert docstrings.line("nowhere:Thing") == docstrings.line("groupwise.kit.errors:Nothing") == ""
    assert docstrings.docstring("groupwise_algorithms.sapo:SAPO") == inspect.getdoc(SAPO)
