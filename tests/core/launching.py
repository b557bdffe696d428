"""Launches a script on several processes that know of each other."""

import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

CONFTEST = Path(__file__).with_name("conftest.py")
IMPORTS = (
    *("tests.core.conftest", "groupwise.run.train", "torch.distributed.fsdp"),
    *("torch._dynamo", "torch._inductor.utils"),
)
"""What processes that share a run come to import, torch's own parts among it."""


@cache
def _nursery() -> subprocess.Popen[str]:
    """A process that imports what scripts need once, and is forked for each of theirs."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nursery.py"))],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.communicate(timeout=60)

    atexit.register(end)
    return process


def launch(
    code: str,
    folder: Path,
    count: int,
    *,
    limit: float = 100,
    imports: Sequence[str] = (),
) -> Any:
    """What a script writes as JSON to its second argument; its first is the file of `lab`.

    limit: in seconds, for all processes.
    imports: more modules that are imported before the processes part.
    """
    script, out = folder / "child.py", folder / f"{count}.json"
    script.write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "RANK"))}
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    job = {
        "command": [str(script), str(CONFTEST), str(out)],
        "environment": base | place | {"OMP_NUM_THREADS": "1"},
        "count": count,
        "limit": limit,
        "imports": [*IMPORTS, *imports],
        "terminals": str(folder / "process"),
    }
    process = _nursery()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    codes = json.loads(process.stdout.readline())
    texts = [Path(f"{job['terminals']}-{rank}.txt").read_text() for rank in range(count)]
    assert not any(codes), "\n".join([f"exit codes {codes}", *texts])
    return json.loads(out.read_text())
