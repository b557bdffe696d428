"""A third-party package: installed, listed, trained by the command line, and uninstalled.

The tests use a virtual environment with the packages of this one on its path.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "third_party"
NAMES = {
    ("policies", "controller"),
    ("rewards", "arrives"),
    ("rewards", "smooth_control"),
    ("algorithms", "reinforce"),
    ("prompts", "controller_targets"),
    ("callbacks", "exploration_log"),
}
FEW_STEPS = (
    "train.steps=3",
    "train.groups_per_step=4",
    "train.group_size=4",
    "evaluation.prompts=8",
    "output=run",
)
ORPHAN = """\
policy:
  name: controller
prompts:
  name: rows
  rows: [{prompt: "a", answer: "b"}]
rewards: [exact_answer]
evaluation: {prompts: 0}
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder to work in."""

    folder: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        scripts = "Scripts" if os.name == "nt" else "bin"
        # PYTHONPATH would add this process's paths.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(
            [str(self.folder / "env" / scripts / "python"), *arguments],
            cwd=self.folder,
            env=inherited | {"OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    def succeed(self, *arguments: str) -> str:
        process = self.python(*arguments)
        assert process.returncode == 0, f"{arguments}\n{process.stdout}\n{process.stderr}"
        return process.stdout

    def groupwise(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "groupwise", *arguments)

    def names(self) -> set[tuple[str, str]]:
        registry = json.loads(self.succeed("-m", "groupwise", "plugins", "--json"))
        assert registry["failures"] == {}
        return {(entry["kind"], entry["name"]) for entry in registry["entries"]}


def borrowed_paths() -> Sequence[str]:
    """The paths of this environment's packages, editable ones included."""
    here = Path.cwd().resolve()
    return [path for path in sys.path if Path(path).is_dir() and Path(path).resolve() != here]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the example installed from a writable copy."""
    for tool in ("hatchling", "pip"):
        if importlib.util.find_spec(tool) is None:
            pytest.fail(f"{tool} is not installed; this test builds the example package with it")
    if importlib.util.find_spec("groupwise_controller") is not None:
        pytest.fail("groupwise-controller is installed in this environment; uninstall it first")
    folder = tmp_path_factory.mktemp("third_party")
    venv.create(folder / "env", with_pip=False, symlinks=os.name != "nt")
    installed = Environment(folder)
    site = installed.succeed("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "borrowed.pth").write_text("\n".join(borrowed_paths()), encoding="utf-8")
    ignored = shutil.ignore_patterns("__pycache__", ".*", "runs")
    shutil.copytree(EXAMPLE, folder / "package", ignore=ignored)
    installed.succeed(
        *("-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--quiet"),
        str(folder / "package"),
    )
    return installed


def test_its_plugins_are_listed(environment: Environment) -> None:
    assert environment.names() >= NAMES | {("algorithms", "grpo")}


def test_it_trains_by_the_command_line(environment: Environment) -> None:
    process = environment.groupwise("train", "package/train.yaml", *FEW_STEPS)
    assert process.returncode == 0, process.stderr
    result = json.loads((environment.folder / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["steps"] == 3
    assert (result["policy"], result["algorithm"]) == ("controller", "reinforce")
    for side in ("before", "after"):
        assert {"reward", "rewards/arrives", "rewards/smooth_control"} <= set(result[side])
        assert result[side]["prompts"] == 8
    assert (environment.folder / "run" / "model" / "model.safetensors").exists()
    assert (environment.folder / "run" / "report.html").exists()


def test_its_own_tests_pass(environment: Environment) -> None:
    environment.succeed(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "package"),
        *("-c", "package/pyproject.toml", "package/tests"),
    )


def test_after_uninstalling_its_names_are_unknown(environment: Environment) -> None:
    environment.succeed("-m", "pip", "uninstall", "--yes", "--quiet", "groupwise-controller")
    assert not environment.names() & NAMES
    (environment.folder / "orphan.yaml").write_text(ORPHAN, encoding="utf-8")
    process = environment.groupwise("train", "orphan.yaml")
    assert process.returncode == 2
    assert "orphan.yaml, line 2: policy.name: unknown policy 'controller'" in process.stderr
    assert not (environment.folder / "runs" / "orphan").exists()
