"""The command line: fast where it must be, and one line where the user can mend it."""

import errno
import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from torch.distributed import DistBackendError
from typer.testing import CliRunner

from groupwise import Policy
from groupwise.cli import commands as cli
from groupwise.errors import UserError
from groupwise.hookspecs import Register, hookimpl
from groupwise.plugins import registry as plugins

GONE = "another process of this run has ended or does not answer, so that this one cannot go on:"
CLOSED = "[/pytorch/gloo/transport/tcp/pair.cc:561] Connection closed by peer"
AGAIN = (
    "Why it ended it says itself, or its launcher does. Started again with --auto-resume the run "
    "goes on from its last checkpoint"
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
    def estimate(
        cls, config: Config, *, decisions: int, training: bool, **counts: int
    ) -> dict[str, int]:
        assert training
        return {"weights": config.width * 2**30, "activations": decisions * 512}


def right(prompts: Any, completions: Any) -> list[float]:
    return [1.0 for _ in completions]


class Plugin:
    @hookimpl
    def register_policies(self, register: Register) -> None:
        register("toy", f"{__name__}:Toy")

    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right", f"{__name__}:right")
        register("heavy", "nowhere:Heavy", extra="math")
        register("right_too", f"{__name__}:right")


class Rival:
    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right_too", "rival:right")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> plugins.Registry:
    """The core's own names, a plugin, its rival and a broken one, whatever is installed."""
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
    found = plugins.discover(points)
    monkeypatch.setattr(plugins, "installed", lambda: found)
    monkeypatch.setattr(
        plugins, "missing_requirements", lambda entry: ["sympy"] if entry.extra == "math" else []
    )
    return found


def _this_module() -> ModuleType:
    module = ModuleType(__name__)
    vars(module).update(Toy=Toy, right=right)
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
    """A stand-in for groupwise.run that notes what it is asked for."""
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


def test_an_interrupted_run_exits_130(config: Path, run_module: SimpleNamespace) -> None:
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
            RuntimeError(CLOSED),
            2,
            f"error: {GONE} {CLOSED}. {AGAIN}",
        ),
        (DistBackendError("NCCL error"), 2, f"error: {GONE} NCCL error. {AGAIN}"),
    ],
)
def test_errors_are_one_line(
    config: Path, run_module: SimpleNamespace, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    run_module.module.train_from_config = fail
    result = call("train", config)
    assert (result.exit_code, result.stderr.strip(), result.stdout) == (code, message, "")


def test_bugs_keep_their_traceback(config: Path, run_module: SimpleNamespace) -> None:
    run_module.module.train_from_config = None
    assert isinstance(call("train", config).exception, TypeError)


def test_mistakes_in_the_configuration_exit_2(config: Path, run_module: SimpleNamespace) -> None:
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
    assert "warning: the algorithm asks a reference:" in result.stdout


@pytest.mark.parametrize(
    ("override", "warning"),
    [
        ("train.microbatch=1", "microbatch 1"),
        ("train.warmup_steps=10", "warmup_steps 10"),
        ("train.learning_rate=0", "learning_rate 0"),
        ("prompts.held_out=0", "held_out 0"),
    ],
)
def test_check_warns(config: Path, override: str, warning: str) -> None:
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
def test_check_finds_mistakes(config: Path, override: str, message: str) -> None:
    result = call("check", config, override)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: override {override!r}: {message}")


def test_check_of_a_policy_without_an_estimate(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "estimate", lambda *_, **__: {})
    assert "policy 'toy' makes no estimate" in call("check", config).stdout


def test_plugins_lists_everything() -> None:
    result = call("plugins")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    told = "GRPO, arXiv:2402.03300: no critic, the group is the baseline."
    assert f"grpo groupwise (?) {told}" in lines
    assert "needs pip install '?[math]'" in result.stdout
    assert "plugin 'broken' could not be loaded: ModuleNotFoundError" in result.stdout
    assert "'right_too' in rewards is registered by several plugins; name one" in result.stdout
    assert "good/right_too or rival/right_too" in result.stdout


def test_plugins_that_are_switched_off_are_named(registry: plugins.Registry) -> None:
    registry.switched_off.append("loud")
    assert "switched off by GROUPWISE_WITHOUT: loud" in call("plugins").stdout
    assert json.loads(call("plugins", "--json").stdout)["switched_off"] == ["loud"]


def test_a_misspelt_plugin_is_not_taken_for_switched_off(registry: plugins.Registry) -> None:
    registry.misnamed["laud"] = ", did you mean 'loud'?"
    told = "GROUPWISE_WITHOUT names 'laud', and no plugin is called so, did you mean 'loud'?"
    assert told in call("plugins").stdout


def test_plugins_as_json() -> None:
    record = json.loads(call("plugins", "--json").stdout)
    heavy = {
        "kind": "rewards",
        "name": "heavy",
        "target": "nowhere:Heavy",
        "extra": "math",
        "plugin": "good",
        "distribution": "?",
        "line": "",
        "missing": ["sympy"],
    }
    assert heavy in record["entries"]
    assert list(record["failures"]) == ["broken"]
    assert record["duplicates"] == [
        {"kind": "rewards", "name": "right_too", "plugins": ["good", "rival"]}
    ]


def test_report_of_no_run(tmp_path: Path) -> None:
    result = call("report", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_version_and_help() -> None:
    assert call("--version").stdout.startswith("groupwise 0")
    assert "train" in call("--help").stdout


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
