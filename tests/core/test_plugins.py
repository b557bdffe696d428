"""Plugins: one that is broken breaks nobody else, and every error says who and what."""

import inspect
import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest

from groupwise import hookspecs
from groupwise.algorithms.sapo import SAPO
from groupwise.errors import UserError
from groupwise.plugins import docstrings
from groupwise.plugins import registry as plugins
from groupwise.plugins.registry import Entry, Registry, discover, missing_requirements

GOOD = """
from groupwise import hookimpl

@hookimpl
def register_rewards(register):
    register("{name}", "{module}_targets:reward")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Write a plugin module and get its entry point."""
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


def good(install, plugin, name):
    return install(
        plugin,
        GOOD.format(name=name, module=f"fake_{plugin}"),
        f"def reward(completions):\n    return [{plugin!r}]\n",
    )


def names(registry):
    return [(entry.kind, entry.name, entry.plugin) for entry in registry.entries]


def test_names_are_found_and_load(install):
    registry = discover(iter([good(install, "one", "first"), good(install, "two", "second")]))
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


def test_targets_are_imported_only_when_asked_for(install):
    registry = discover(iter([good(install, "one", "first")]))
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
def test_a_broken_plugin_is_shown_and_breaks_nobody(install, case):
    source, reason = BROKEN[case]
    points = [
        good(install, "one", "first"),
        install("broken", source),
        good(install, "two", "second"),
    ]
    registry = discover(iter(points))
    # Nothing of the broken one counts, not even what it had registered before it failed.
    assert names(registry) == [("rewards", "first", "one"), ("rewards", "second", "two")]
    assert list(registry.failures) == ["broken"]
    assert registry.failures["broken"].startswith(reason)
    assert registry.load("rewards", "second")([]) == ["two"]
    with pytest.raises(UserError, match="plugin 'broken' may register it, but could not be loaded"):
        registry.load("rewards", "lost")


def test_two_entry_points_of_one_name(install):
    first, second = good(install, "one", "first"), good(install, "two", "second")
    second = EntryPoint(name="one", value=second.value, group="groupwise")
    registry = discover(iter([first, second]))
    assert names(registry) == [("rewards", "first", "one")]
    assert "one" in registry.failures


def test_duplicates_name_both_plugins(install):
    points = [good(install, plugin, "same") for plugin in ("one", "two")]
    registry = discover(iter([*points, good(install, "three", "other")]))
    told = r"reward 'same' is registered twice: by plugins 'one' \(.*\) and 'two' \(.*\)"
    with pytest.raises(UserError, match=told):
        registry.load("rewards", "same")
    assert registry.load("rewards", "other")([]) == ["three"]


def test_one_of_two_is_reached_by_its_plugin(install):
    points = [good(install, plugin, "same") for plugin in ("one", "two")]
    registry = discover(iter(points))
    for plugin in ("one", "two"):
        assert registry.load("rewards", f"{plugin}/same")([]) == [plugin]
    with pytest.raises(UserError, match="name one of them as 'one/same' or 'two/same'"):
        registry.load("rewards", "same")
    with pytest.raises(UserError, match="'somebody/model' is no reward's name"):
        registry.load("rewards", "somebody/model")
    assert discover(iter(points[:1])).load("rewards", "one/same")([]) == ["one"]


@pytest.mark.parametrize("name", ["oen/same", "one/smae"])
def test_a_misspelt_name_with_its_plugin_gets_a_suggestion(install, name):
    registry = discover(iter([good(install, "one", "same")]))
    with pytest.raises(UserError, match=f"unknown reward '{name}', did you mean 'one/same'?"):
        registry.load("rewards", name)


def test_a_registered_name_goes_before_that_of_a_plugin(install):
    plain, clashing = good(install, "one", "same"), good(install, "two", "one/same")
    registry = discover(iter([plain, clashing]))
    assert registry.load("rewards", "one/same")([]) == ["two"]


@pytest.mark.parametrize("without", ["two", " two , three", "two,,"])
def test_plugins_are_switched_off(install, monkeypatch, without):
    monkeypatch.setenv(plugins.SWITCHED_OFF, without)
    points = [
        good(install, "one", "first"),
        install("two", "raise RuntimeError('it was imported')"),
    ]
    registry = discover(iter(points))
    assert names(registry) == [("rewards", "first", "one")]
    assert registry.failures == {}
    assert registry.switched_off == ["two"]
    told = "registered are first\n  plugin 'two' may register it, but is switched off by GROUP"
    with pytest.raises(UserError, match=told):
        registry.load("rewards", "second")


def test_what_is_switched_off_and_not_there_is_noted(install, monkeypatch):
    monkeypatch.setenv(plugins.SWITCHED_OFF, "ome,,one")
    points = [good(install, plugin, plugin) for plugin in ("one", "omen")]
    assert discover(iter(points)).misnamed == {"ome": ", did you mean 'omen'?"}


def test_switching_one_off_settles_whose_name_it_is(install, monkeypatch):
    points = [good(install, plugin, "same") for plugin in ("one", "two")]
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


def test_unknown_names_suggest_and_list(install):
    registry = discover(iter([good(install, "one", "exact_match")]))
    told = "unknown reward 'exact_mach', did you mean 'exact_match'?; registered are exact_match"
    with pytest.raises(UserError) as caught:
        registry.load("rewards", "exact_mach")
    assert str(caught.value) == told
    with pytest.raises(UserError, match="unknown policy 'exact_match'; registered are none"):
        registry.load("policies", "exact_match")


# ---- targets


def test_module_and_attribute(install, tmp_path):
    (tmp_path / "fake_own.py").write_text("class Judge:\n    def score(self): ...\nrate = 3\n")
    registry = Registry()
    assert registry.load("rewards", "fake_own:rate") == 3
    assert registry.load("rewards", "fake_own:Judge.score").__name__ == "score"
    with pytest.raises(UserError, match="has no 'rat', did you mean 'rate'"):
        registry.load("rewards", "fake_own:rat")
    with pytest.raises(UserError, match="cannot import 'fake_nowhere'"):
        registry.load("rewards", "fake_nowhere:rate")
    with pytest.raises(UserError, match="has no ''"):
        registry.load("rewards", "fake_own:")
    sys.modules.pop("fake_own")


def test_a_target_that_breaks_at_import_is_told(install):
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
    of_package = [
        Entry(**{**vars(entry), "distribution": "their-package"}) for entry in registry.entries
    ]
    registry = Registry(entries=of_package)
    told = r"'heavy' needs an extra: pip install 'their-package\[gpu\]' \(No module named 'surely"
    with pytest.raises(UserError, match=told):
        registry.load("rewards", "heavy")
    with pytest.raises(UserError, match="'plain': cannot import"):
        registry.load("rewards", "plain")
    # The plugin's own module missing is no question of extras.
    with pytest.raises(UserError, match="'wrong': cannot import 'fake_one_nowhere'"):
        registry.load("rewards", "wrong")


def test_requirements_of_what_has_no_metadata_are_unknown():
    entry = Entry(kind="rewards", name="x", target="m:f", extra="gpu", plugin="p", distribution="?")
    assert missing_requirements(entry) == []


# ---- what ships


def own_entry_points():
    for folder in Path(__file__).parents:
        if (folder / "pyproject.toml").exists():
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            return project["entry-points"]["groupwise"]
    raise AssertionError("no pyproject.toml above the tests")


LISTING = """
import sys
from importlib.metadata import EntryPoint
from groupwise.plugins.registry import KINDS, discover

points = [EntryPoint(*point.split("="), "groupwise") for point in sys.argv[1:]]
registry = discover(iter(points))
assert not registry.failures, registry.failures
found = {(entry.kind, entry.name) for entry in registry.entries}
assert len(found) == len(registry.entries), "a name is registered twice"
for name in ("grpo", "dr_grpo", "dapo", "gspo"):
    assert ("algorithms", name) in found
for name in ("rows", "dataset"):
    assert ("prompts", name) in found
heavy = {"torch", "accelerate", "transformers", "datasets", "numpy", "diffusers", "sympy"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_listing_what_ships_imports_nothing_heavy():
    points = [f"{name}={value}" for name, value in own_entry_points().items()]
    subprocess.run(
        [sys.executable, "-c", LISTING, *points],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_cores_own_names_load():
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
    assert set(hooks) == {f"register_{kind}" for kind in plugins.KINDS}
    for name, function in hooks.items():
        assert inspect.getdoc(function), name
        assert list(inspect.signature(function).parameters) == ["register"], name
    assert set(plugins.SINGULAR) == set(plugins.KINDS)


def test_what_ships_says_in_a_line_what_it_is():
    """As `groupwise plugins` prints it, without an import; a stranger's may be silent."""
    points = (EntryPoint(name, value, "groupwise") for name, value in own_entry_points().items())
    lines = {e.name: docstrings.line(e.target) for e in discover(points).entries}
    assert [name for name, line in lines.items() if not line.endswith(".")] == []
    assert docstrings.line("nowhere:Thing") == docstrings.line("groupwise.errors:Nothing") == ""
    assert docstrings.docstring("groupwise.algorithms.sapo:SAPO") == inspect.getdoc(SAPO)
