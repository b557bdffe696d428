"""A small run that several processes share, and what its metrics are when nothing goes wrong."""

import json
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
TIMED = ("time/", "reward_time/", "decisions_per_second")
PATIENCE = 120
"""Seconds until a test gives up; what it waits for takes some seconds on a quiet machine."""


@contextmanager
def started(*arguments: Any, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of Python whose output can be read; it ends with the context."""
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
    """As many agents as there are nodes, each with processes that train."""
    launch = [
        *("-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={processes}"),
        *("--max-restarts=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"),
        *("-m", "groupwise", "train", *arguments, "--quiet"),
    ]
    with ExitStack() as stack:
        yield [
            stack.enter_context(started(*launch, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
            for _ in range(nodes)
        ]


def train(count: int, config: Path, run: Path) -> None:
    """By as many processes, of which none is started again."""
    Job(
        *("-m", "groupwise", "train", config, f"output={run}", "--quiet"),
        terminals=run.with_name("train"),
        environment=ENVIRONMENT,
        count=count,
        limit=PATIENCE,
        path=[*map(str, MODULES)],
    ).succeed()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and output, once it has ended."""
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def wait_for(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    """Until a condition holds, while the processes run."""
    last = time.monotonic() + PATIENCE
    while not condition():
        for process in processes:
            if process.poll() is not None or time.monotonic() > last:
                process.kill()
                pytest.fail(process.communicate()[0])
        time.sleep(0.02)


def lines(run: Path) -> list[Mapping[str, Any]]:
    """The metrics of a run, but for its times."""
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in read]


def near(expected: list[Mapping[str, Any]]) -> list[Any]:
    """What is equal to the metrics but for the order in which processes take sums."""
    return [pytest.approx(line, rel=1e-5, abs=1e-6) for line in expected]


@pytest.fixture(scope="session")
def cluster() -> SimpleNamespace:
    return SimpleNamespace(
        root=ROOT,
        environment=ENVIRONMENT,
        started=started,
        torchrun=torchrun,
        train=train,
        ended=ended,
        wait_for=wait_for,
        lines=lines,
        near=near,
    )


@pytest.fixture(scope="package")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="package")
def alone(config: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The metrics of one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    train(1, config, run)
    return lines(run)
