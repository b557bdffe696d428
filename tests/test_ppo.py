"""The PPO example: built as a wheel and unpacked on the path of a process, its tests pass."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.core.launching import Job

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "ppo"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, with the files of an installation."""
    folder = tmp_path_factory.mktemp("ppo")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    name = subprocess.run(
        [sys.executable, "-c", build, str(folder)],
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[-1]
    with zipfile.ZipFile(folder / name) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


# About 15 s: two dozen tests with models and runs, in a process with the package on its path.
def test_it_registers_and_its_own_tests_pass(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE)
    Job(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"),
        terminals=tmp_path / "tests",
        # pytest warns of plugins that a library has imported before.
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        limit=200,
        imports=["groupwise_llm.policy"],
        path=[str(package), *sys.path],
    ).succeed()
