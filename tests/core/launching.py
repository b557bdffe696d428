"""Starts Python with all imports made already: one process, or several that know of each other."""

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

CONFTEST = Path(__file__).with_name("conftest.py")
IMPORTS = (
    *("tests.core.conftest", "groupwise.run.train", "torch.distributed.fsdp"),
    *("torch._dynamo", "torch._inductor.utils"),
)
"""What runs come to import, torch's own parts among it."""


@cache
def _nursery() -> subprocess.Popen[str]:
    """A process that imports what jobs need once, and is forked for each of theirs."""
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
    """`python COMMAND ...` in the current folder, begun; one at a time.

    command: a script and its arguments, or `-m`, a module and its arguments.
    terminals: what process N prints is in the file of this name and `-N.txt`.
    environment: beside that of this process.
    count: of processes, which share a run where there is more than one.
    limit: in seconds, for all processes.
    imports: more modules that are imported before the processes part.
    path: folders of modules; without it those of this process.
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
        more = {"OMP_NUM_THREADS": "1", **(_together(count) if count > 1 else {})}
        self.terminals = [terminals.with_name(f"{terminals.name}-{n}.txt") for n in range(count)]
        job = {
            "command": [*map(str, command)],
            "home": str(Path.cwd()),
            "path": [*(sys.path if path is None else path)],
            "environment": base | more | dict(environment or {}),
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
        """Exit codes and what was printed, of each process, once all have ended."""
        answers = _nursery().stdout
        assert answers is not None
        codes = json.loads(answers.readline())
        return codes, [terminal.read_text() for terminal in self.terminals]

    def succeed(self) -> None:
        """To its end, which fails the test where it is no good one."""
        codes, texts = self.end()
        assert not any(codes), "\n".join([f"exit codes {codes}", *texts])


def _together(count: int) -> dict[str, str]:
    """What tells processes of each other."""
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
    """What a script writes as JSON to its second argument; its first is the file of `lab`."""
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
