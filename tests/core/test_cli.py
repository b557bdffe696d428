"""The command line: its output, its fast start, and one-line errors for mistakes of the user."""

import errno
import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from torch.distributed import DistBackendError
from typer.main import get_command
from typer.testing import CliRunner

from groupwise import Policy
from groupwise import registry as plugins
from groupwise.algorithms.grpo import GRPO
from groupwise.cli import commands as cli
from groupwise.cli.catalog import catalog
from groupwise.cli.completion import run_folders
from groupwise.cli.page import page
from groupwise.errors import UserError
from groupwise.hookspecs import Register, hookimpl
from groupwise.memory import Workload

PROCESS_ENDED = (
    "another process of this run has ended or does not answer, so this one cannot go on:"
)
CONNECTION_CLOSED = "[/pytorch/gloo/transport/tcp/pair.cc:561] Connection closed by peer"
RESTART_ADVICE = (
    "The reason is in that process's output, or in its launcher's. Started again with "
    "--auto-resume, the run goes on from its last checkpoint"
)
CONFIG = """\
policy: {name: toy, width: 3}
prompts: {name: rows, rows: [{prompt: a}]}
rewards: [right]
algorithm: {name: grpo, beta: 0.1}
train: {steps: 10, group_size: 2}
"""


class Toy(Policy):
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        width: int = 1

    @classmethod
    def estimate(cls, config: Config, load: Workload) -> dict[str, int]:
        assert load.training
        return {"weights": config.width * 2**30, "activations": load.decisions * 512}


def right(prompts: Any, completions: Any) -> list[float]:
    return [1.0 for _ in completions]


def strict(prompts: Any, completions: Any, strict: bool, limit: int = 3) -> list[float]:
    return [1.0 for _ in completions]


class Plugin:
    @hookimpl
    def register_policies(self, register: Register) -> None:
        register("toy", f"{__name__}:Toy")

    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right", f"{__name__}:right")
        register("heavy", "nowhere:Heavy", extra="math")
        register("right_too", f"{__name__}:strict")


class Rival:
    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right_too", "rival:right")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> plugins.Registry:
    """The names of the core, of a plugin, of one with a clashing name and of a broken one."""
    module = ModuleType("cli_test_plugins")
    module.good, module.rival = Plugin(), Rival()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, _this_module()))
    values = {
        "groupwise": "groupwise.builtins",
        "good": "cli_test_plugins:good",
        "rival": "cli_test_plugins:rival",
        "broken": "no_such_module.plugin",
    }
    points = (EntryPoint(name=k, value=v, group="groupwise") for k, v in values.items())
    discovered = plugins.discover(points)
    monkeypatch.setattr(plugins, "installed", lambda: discovered)
    monkeypatch.setattr(
        plugins, "missing_requirements", lambda entry: ["sympy"] if entry.extra == "math" else []
    )
    return discovered


def _this_module() -> ModuleType:
    module = ModuleType(__name__)
    vars(module).update(Toy=Toy, right=right, strict=strict)
    return module


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def call(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def run_module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces groupwise.run.train and records its calls."""
    calls: list[Any] = []

    def train_from_config(loaded: Any, **options: bool) -> SimpleNamespace:
        calls.append((loaded, options))
        return SimpleNamespace(interrupted=loaded.config.seed == 13)

    module = ModuleType("groupwise.run.train")
    vars(module).update(train_from_config=train_from_config)
    monkeypatch.setitem(sys.modules, "groupwise.run.train", module)
    return SimpleNamespace(calls=calls, module=module)


def test_train_passes_configuration_and_flags(config: Path, run_module: SimpleNamespace) -> None:
    result = call("train", config, "train.steps=5", "seed=3", "--overwrite", "--quiet")
    assert result.exit_code == 0, result.output
    loaded, options = run_module.calls[0]
    assert (loaded.config.train.steps, loaded.config.seed) == (5, 3)
    assert options == {"resume": False, "overwrite": True, "quiet": True}


def test_an_interrupted_run_exits_with_code_130(config: Path, run_module: SimpleNamespace) -> None:
    assert call("train", config, "seed=13").exit_code == 130


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("mend [this]"), 2, "error: mend [this]"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"),
            2,
            "error: no space left on device: metrics.jsonl",
        ),
        (
            RuntimeError("write failed: No space left on device (os error 28)"),
            2,
            "error: no space left on device",
        ),
        (
            RuntimeError(CONNECTION_CLOSED),
            2,
            f"error: {PROCESS_ENDED} {CONNECTION_CLOSED}. {RESTART_ADVICE}",
        ),
        (DistBackendError("NCCL error"), 2, f"error: {PROCESS_ENDED} NCCL error. {RESTART_ADVICE}"),
    ],
)
def test_errors_of_the_user_are_one_line(
    config: Path, run_module: SimpleNamespace, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    run_module.module.train_from_config = fail
    result = call("train", config)
    assert (result.exit_code, result.stderr.strip(), result.stdout) == (code, message, "")


def test_other_exceptions_keep_their_traceback(config: Path, run_module: SimpleNamespace) -> None:
    run_module.module.train_from_config = None
    assert isinstance(call("train", config).exception, TypeError)


def test_mistakes_in_the_configuration_exit_with_code_2(
    config: Path, run_module: SimpleNamespace
) -> None:
    result = call("train", config, "train.stesp=5")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: override 'train.stesp=5': train.stesp: unknown key, did you mean 'steps'?\n"
    )
    assert not run_module.calls


def test_check_describes_the_run(config: Path) -> None:
    result = call("check", config)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["rollouts", "per", "step", "16"] in lines
    assert ["updates", "in", "total", "10"] in lines
    assert ["weights", "3.00", "GiB"] in lines
    assert ["activations", "8.0", "MiB"] in lines
    assert ["at", "most", "at", "once", "3.01", "GiB"] in lines
    assert "warning: group_size 2:" in result.stdout
    assert "warning: the algorithm uses a reference:" in result.stdout


@pytest.mark.parametrize(
    ("override", "warning"),
    [
        ("train.microbatch=1", "microbatch 1"),
        ("train.warmup_steps=10", "warmup_steps 10"),
        ("train.learning_rate=0", "learning_rate 0"),
        ("prompts.held_out=0", "held_out 0"),
    ],
)
def test_check_warns_of_questionable_settings(config: Path, override: str, warning: str) -> None:
    assert f"warning: {warning}" not in call("check", config).stdout
    assert f"warning: {warning}" in call("check", config, override).stdout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.wdth=3", "policy.wdth: unknown key, did you mean 'width'?"),
        ("algorithm.name=gpro", "algorithm.name: unknown algorithm 'gpro', did you mean 'grpo'?"),
        ("algorithm.beta=x", "algorithm.beta: expected a number, found 'x'"),
        ("evaluation.accuracy=rihgt", "evaluation.accuracy: no reward 'rihgt', did you mean 'righ"),
        ("rewards.0=right_too", "rewards.0.name: reward 'right_too' is registered twice"),
    ],
)
def test_check_refuses_mistakes(config: Path, override: str, message: str) -> None:
    result = call("check", config, override)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: override {override!r}: {message}")


def test_check_works_for_a_policy_without_a_memory_estimate(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "estimate", lambda *_, **__: {})
    assert "policy 'toy' makes no estimate" in call("check", config).stdout


def test_plugins_lists_each_name_with_its_summary() -> None:
    result = call("plugins")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert f"grpo {GRPO.__doc__.splitlines()[0]}" in lines
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
    field = GRPO.Config.model_fields["beta"]
    assert f"  beta: {field.default}  (number, ≥ 0)\n      {field.description}\n" in text
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


def test_an_unknown_command_gets_a_suggestion() -> None:
    result = call("tain")
    assert result.exit_code == 2
    assert "Did you mean 'train'?" in result.stderr


def test_version_is_printed() -> None:
    assert call("--version").stdout.startswith("groupwise 0")


def test_help_shows_each_command_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    panels = call("--help").stdout.partition("Start a run")[2].splitlines()
    first_words = [line[2:].split(" ")[0] for line in panels if line.startswith("│")]
    # The second line of a wrapped summary would begin with a blank.
    assert first_words == list(get_command(cli.app).list_commands(None))


def test_help_shows_flags_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = call("train", "--help").stdout
    for flag in ("--resume", "--auto-resume", "--overwrite", "--quiet", "--help"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"│ {flag} ")]
        assert "<" not in line


def test_listing_plugins_imports_nothing_heavy() -> None:
    code = """
import sys
from groupwise.cli import commands as cli
try:
    cli.main()
except SystemExit as end:
    assert end.code == 0, end.code
heavy = {"torch", "accelerate", "transformers", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    for arguments in (["plugins", "--json"], ["plugins"], ["--help"]):
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=60)


def test_shell_completion_offers_names_and_run_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"_GROUPWISE_COMPLETE": "complete_bash", "COMP_CWORD": "2"}

    def completions(line: str) -> list[str]:
        words = {**environment, "COMP_WORDS": f"groupwise {line}"}
        result = CliRunner().invoke(cli.app, [], prog_name="groupwise", env=words)
        return result.stdout.split()

    assert completions("plugins gr") == ["grpo"]
    monkeypatch.chdir(tmp_path)
    for run in ("runs/one", "runs/other", "two"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").touch()
    assert completions("eval r") == ["runs/one", "runs/other"]
    assert run_folders("runs/ot") == ["runs/other"]
    assert run_folders("") == ["runs/one", "runs/other", "two"]
