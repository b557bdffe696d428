"""The command line: its output, its fast start, and one-line errors for mistakes of the user."""

import errno
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from tests.command_line import call
from torch.distributed import DistBackendError
from typer.main import get_command

from groupwise import Policy
from groupwise import registry as plugins
from groupwise.cli import app
from groupwise.cli.completion import run_folders
from groupwise.display import Display
from groupwise.hookspecs import Register, hookimpl
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload

PROCESS_ENDED = (
    "another process of this run has ended, or has not answered for 600 s (train.timeout), so this "
    "one cannot go on:"
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


class Plugin:
    @hookimpl
    def register_policies(self, register: Register) -> None:
        register("toy", f"{__name__}:Toy")

    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right", f"{__name__}:right")
        register("right_too", f"{__name__}:right")


class Rival:
    @hookimpl
    def register_rewards(self, register: Register) -> None:
        register("right_too", "rival:right")


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the core, of a plugin, of one with a clashing name and of a broken one."""
    module = ModuleType("cli_test_plugins")
    module.good, module.rival = Plugin(), Rival()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, _this_module()))
    values = {
        "groupwise": "groupwise.builtins",
        "commands": "groupwise_commands.plugin",
        "good": "cli_test_plugins:good",
        "rival": "cli_test_plugins:rival",
        "broken": "no_such_module.plugin",
    }
    points = (EntryPoint(name=k, value=v, group="groupwise") for k, v in values.items())
    discovered = plugins.discover(points)
    monkeypatch.setattr(plugins, "installed", lambda: discovered)


def _this_module() -> ModuleType:
    module = ModuleType(__name__)
    vars(module).update(Toy=Toy, right=right)
    return module


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


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
    assert isinstance(options.pop("display"), Display)
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


def test_traceback_shows_the_calls_before_the_line(
    config: Path, run_module: SimpleNamespace
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        try:
            _ = {}["nope"]
        except KeyError as error:
            raise UserError("the reward failed") from error

    run_module.module.train_from_config = fail
    result = call("train", config, "--traceback")
    assert result.exit_code == 2
    assert "KeyError: 'nope'" in result.stderr
    assert result.stderr.endswith("error: the reward failed\n")


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
    assert first_words == list(get_command(app).list_commands(None))


def test_help_shows_flags_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = call("train", "--help").stdout
    for flag in ("--resume", "--auto-resume", "--overwrite", "--quiet", "--help"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"│ {flag} ")]
        assert "<" not in line


def test_a_mistake_in_a_file_is_found_before_torch_is_imported() -> None:
    code = """
import sys
import groupwise.building.validation, groupwise.cli, groupwise.config.load, groupwise.rewards
import groupwise.storage.run_info
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_listing_plugins_imports_nothing_heavy() -> None:
    code = """
import sys
from groupwise.cli import main
try:
    main()
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
        return call(prog_name="groupwise", env=words).stdout.split()

    assert completions("plugins gr") == ["grpo"]
    monkeypatch.chdir(tmp_path)
    for run in ("runs/one", "runs/other", "two"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").touch()
    assert completions("eval r") == ["runs/one", "runs/other"]
    assert run_folders("runs/ot") == ["runs/other"]
    assert run_folders("") == ["runs/one", "runs/other", "two"]
