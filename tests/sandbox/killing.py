"""A run is killed while its sandbox's programs are running."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import psutil
from tests.effort import Effort

_END = "print(s._connected()._server.pid, flush=True)\ntime.sleep(100)\n"


def ends_with_its_run(code: str) -> tuple[int, float] | None:
    """Kills a run, and returns how many processes of programs were alive, and the seconds, as on an
    idle machine, after which none is; None where the run ends before by itself.

    code: begins the programs with a sandbox `s`.
    """
    run = subprocess.Popen([sys.executable, "-c", code + _END], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    if not (number := run.stdout.readline()):
        return None
    server = psutil.Process(int(number))
    begun: Sequence[psutil.Process] = server.children(recursive=True)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    with Effort() as effort:
        _, alive = psutil.wait_procs([server, *begun], timeout=20)
    assert alive == []
    return len(begun), effort.wall
