"""A small run for several processes, and its metrics when trained by one process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests import repeated
from tests.core.launching import Job

ROOT = Path(__file__).parents[2]
MODULES = [ROOT / "examples" / "third_party" / "src", Path(__file__).parent, *sys.path]
ENVIRONMENT = {
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(map(str, MODULES)),
}
CONFIG = {
    "policy": "groupwise_controller.policy:Controller",
    "prompts": "groupwise_controller.prompts:Targets",
    "rewards": ["groupwise_controller.rewards:arrives"],
    "train": {
        "steps": 8,
        "groups_per_step": 4,
        "group_size": 8,
        "learning_rate": 3e-3,
        "checkpoint_every": 1,
        "checkpoint_minutes": None,
    },
    "evaluation": {"prompts": 8, "every": 4},
}
TIMEOUT = 300
"""Seconds after which a test fails; what it waits for takes a few seconds on an idle machine, and
on a busy one Ray alone takes a minute."""


@contextmanager
def start_python(*arguments: Any, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Starts Python; the process, whose output can be read, is killed at the end of the context."""
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=os.environ | ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def torchrun(nodes: int, *arguments: Any, processes: int = 1, port: int = 0) -> Iterator[Any]:
    """Starts one torchrun agent for each node, with `processes` training processes each."""
    launch = [
        *("-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={processes}"),
        *("--max-restarts=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"),
        *("-m", "groupwise", "train", *arguments, "--quiet"),
    ]
    with ExitStack() as stack:
        options = {
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(TIMEOUT),  # 30 s are few on a busy machine
        }
        yield [stack.enter_context(start_python(*launch, **options)) for _ in range(nodes)]


def train(count: int, config: Path, run: Path) -> None:
    """Trains with `count` processes, without restarts."""
    Job(
        *("-m", "groupwise", "train", config, f"output={run}", "--quiet"),
        terminals=run.with_name("train"),
        environment=ENVIRONMENT,
        count=count,
        limit=TIMEOUT,
        path=[*map(str, MODULES)],
    ).succeed()


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Waits for the end of a process; its exit code and output."""
    output, _ = process.communicate(timeout=TIMEOUT)
    return process.returncode, output


def wait_for(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    """Waits for a condition; fails if one of the processes ends before."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        for process in processes:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail(process.communicate()[0])
        time.sleep(0.02)


def lines(run: Path) -> list[dict[str, Any]]:
    """The repeatable metrics of a run's lines, without the one that only several processes have."""
    own = repeated.lines(run)
    return [{name: line[name] for name in line if name != "slowest_process"} for line in own]


def approximately(expected: list[Mapping[str, Any]]) -> list[Any]:
    """The metrics with tolerances, since processes add in different orders."""
    return [pytest.approx(line, rel=1e-5, abs=1e-6) for line in expected]


@pytest.fixture(scope="session")
def cluster() -> SimpleNamespace:
    return SimpleNamespace(
        root=ROOT,
        environment=ENVIRONMENT,
        start_python=start_python,
        torchrun=torchrun,
        train=train,
        wait_for_end=wait_for_end,
        wait_for=wait_for,
        lines=lines,
        approximately=approximately,
    )


@pytest.fixture(scope="package")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="package")
def expected_lines(config: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The metrics of the run trained by one process."""
    run = tmp_path_factory.mktemp("expected") / "run"
    train(1, config, run)
    return lines(run)
