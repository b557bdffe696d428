"""Imports the slow modules once, then forks the processes of each job.

Every line of stdin is a job as JSON; the exit codes of its processes are written as a line to
stdout. Nothing is computed here: a forked process would lack the threads of that computation.
"""

import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def child(job: dict[str, Any], rank: int) -> None:
    """Runs the command in this forked process, as if `python` had been started with it."""
    terminal = os.open(f"{job['terminals']}-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(terminal, 1)
    os.dup2(terminal, 2)
    os.environ.clear()
    os.environ.update(job["environment"])
    if "WORLD_SIZE" in os.environ:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(job["home"])
    code = 1
    try:
        start(job["command"], job["path"])
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if not isinstance(leave.code, int | None):
            print(leave.code)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start(command: list[str], path: list[str]) -> None:
    """Runs `python SCRIPT ...` or `python -m MODULE ...`; command: the words after `python`."""
    if command[0] == "-m":
        sys.argv, sys.path = command[1:], [str(Path.cwd()), *path]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path = command, [str(Path(command[0]).parent), *path]
        runpy.run_path(command[0], run_name="__main__")


def run(job: dict[str, Any]) -> list[int]:
    """The exit codes. After a failure or at the limit of time, the other processes are killed."""
    for name in job["imports"]:
        importlib.import_module(name)
    ranks: dict[int, int] = {}
    for rank in range(job["count"]):
        if not (process := os.fork()):
            child(job, rank)
        ranks[process] = rank
    codes, deadline = [0] * job["count"], time.monotonic() + job["limit"]
    while ranks:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            codes[ranks.pop(process)] = os.waitstatus_to_exitcode(status)
            if status:  # the others may wait for it; 5 s to report its loss themselves
                deadline = min(deadline, time.monotonic() + 5)
        elif time.monotonic() > deadline:
            for process in ranks:
                os.kill(process, signal.SIGKILL)
        else:
            time.sleep(0.01)
    return codes


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of imported modules must not mix with the exit codes
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)
    os._exit(0)  # without the handlers of imported modules at exit


if __name__ == "__main__":
    main()
