"""Starts scripts in one process or several distributed ones, forked after the slow imports."""

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

CONFTEST = Path(__file__).with_name("conftest.py")
IMPORTS = (
    *("tests.core.conftest", "groupwise.run.train", "torch.distributed.fsdp"),
    *("torch._dynamo", "torch._dynamo.repro.after_dynamo", "torch._inductor.utils", "peft"),
)
"""Modules that most runs import, some of them by torch itself."""


@cache
def _nursery() -> subprocess.Popen[str]:
    """A process that imports these modules once and is forked for every process of a job."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nursery.py"))],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=CONFTEST.parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.communicate(timeout=60)

    atexit.register(end)
    return process


class Job:
    """`python COMMAND ...`, started in the current folder. Only one job runs at a time.

    command: a script and its arguments, or `-m`, a module and its arguments.
    terminals: the output of process N is written to the file of this name with `-N.txt`.
    environment: variables added to those of this process.
    count: number of processes; more than one form a process group.
    limit: of time, in seconds, for all processes.
    imports: further modules that are imported before the processes are forked.
    path: the `sys.path` of the processes; by default that of this process.
    """

    def __init__(
        self,
        *command: Any,
        terminals: Path,
        environment: Mapping[str, str] | None = None,
        count: int = 1,
        limit: float = 100,
        imports: Sequence[str] = (),
        path: Sequence[str] | None = None,
    ) -> None:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "RANK"))}
        variables = {"OMP_NUM_THREADS": "1", **(_process_group(count) if count > 1 else {})}
        self.terminals = [terminals.with_name(f"{terminals.name}-{n}.txt") for n in range(count)]
        job = {
            "command": [*map(str, command)],
            "home": str(Path.cwd()),
            "path": [*(sys.path if path is None else path)],
            "environment": base | variables | dict(environment or {}),
            "count": count,
            "limit": limit,
            "imports": [*IMPORTS, *imports],
            "terminals": str(terminals),
        }
        process = _nursery()
        assert process.stdin is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()

    def is_running(self) -> bool:
        return not select.select([_nursery().stdout], [], [], 0)[0]

    def end(self) -> tuple[list[int], list[str]]:
        """Waits for all processes; the exit code and the output of each."""
        answers = _nursery().stdout
        assert answers is not None
        codes = json.loads(answers.readline())
        return codes, [terminal.read_text() for terminal in self.terminals]

    def succeed(self) -> None:
        """Waits for all processes and fails the test if one has an exit code other than 0."""
        codes, texts = self.end()
        assert not any(codes), "\n".join([f"exit codes {codes}", *texts])


def _process_group(count: int) -> dict[str, str]:
    """Variables of the environment by which processes find each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def launch(
    code: str,
    folder: Path,
    count: int,
    *,
    limit: float = 100,
    imports: Sequence[str] = (),
) -> Any:
    """Runs a script and returns the JSON that it writes to its second argument.

    Its first argument is the file that defines `lab`.
    """
    script, out = folder / "child.py", folder / f"{count}.json"
    script.write_text(code)
    job = Job(
        *(script, CONFTEST, out),
        terminals=folder / "process",
        count=count,
        limit=limit,
        imports=imports,
    )
    job.succeed()
    return json.loads(out.read_text())


CALL = """
import json, os, sys
os.environ["ACCELERATE_USE_CPU"] = "true"
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.core.conftest import lab_of_tests
from {module} import {name}
out = Path(sys.argv[2])
result = {name}(lab_of_tests, out.with_suffix(""))
if os.environ["RANK"] == "0":
    out.write_text(json.dumps(result))
"""


def call(function: Callable[[Any, Path], Any], folder: Path, count: int) -> Any:
    """Calls `function(lab, folder)` of a test module in several distributed processes.

    Returns what it returns in the first one, by way of JSON.
    """
    code = CALL.format(module=function.__module__, name=function.__name__)
    return launch(code, folder, count)
