"""Launches a script on several processes that know of each other."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def launch(code: str, folder: Path, count: int, *, limit: float = 100) -> Any:
    """What a script writes as JSON to its second argument; its first is the file of `lab`.

    limit: in seconds, for each process.
    """
    script, out = folder / "child.py", folder / f"{count}.json"
    script.write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "RANK"))}
    children = []
    for rank in range(count):
        place = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        environment = {
            **base,
            **place,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [
            sys.executable,
            str(script),
            str(Path(__file__).with_name("conftest.py")),
            str(out),
        ]
        children.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        told = [child.communicate(timeout=limit)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    assert all(child.returncode == 0 for child in children), "\n".join(told)
    return json.loads(out.read_text())
