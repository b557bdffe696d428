"""WorkerProcess: the process of one reward, with the replies to its requests."""

import os
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch

from groupwise.kit import foreign_json
from groupwise.kit.descendants import kill_descendants
from groupwise.scoring import server
from groupwise.scoring.allowance import Allowance
from groupwise.scoring.reward_call import Failure

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a distributed launch, which a worker must not inherit: it would wait for peers."""
STARTING = 3600.0
"""Seconds to start the process and load the reward, downloads included."""
POLL = 0.5
"""Seconds between checks whether the process is still alive."""


class Doubtful(Failure):
    """A failure that the machine may have caused, and not the reward.

    end: how the process failed.
    """

    def __init__(self, end: Literal["unstarted", "late", "killed"], reason: str) -> None:
        super().__init__(reason)
        self.end = end


class WorkerProcess:
    """A fresh interpreter that runs `serve`; kill: ends it with all processes that it has started,
    also where nobody calls it, when this object is dropped or this interpreter ends."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            # A new session, so that Ctrl-C goes to the run only, which then ends the worker.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _program(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self._requests = count()
        self.kill = weakref.finalize(self, _kill, self._process, self._connection)

    @property
    def is_alive(self) -> bool:
        return self.kill.alive and self._process.poll() is None

    def load(self, source: bytes) -> dict[str, Any]:
        """Send the reward; returns the reply when it is loaded. Raises Failure as `reply` does."""
        try:
            return self._reply(source, Allowance(STARTING))
        except Doubtful as failure:
            raise Doubtful("unstarted", failure.reason) from failure

    def reply(self, request: bytes, deadline: float, *, waits: bool) -> dict[str, Any]:
        """Send a request and wait for its reply. Raises Failure if the process ends, or if there is
        no reply in time, and then kills it.

        waits: whether the reward waits for others, so that its deadline is wall time.
        """
        allowance = Allowance(deadline, None if waits else self._process.pid)
        return self._reply(request, allowance, is_own=waits)

    def _reply(
        self, request: bytes, allowance: Allowance, *, is_own: bool = False
    ) -> dict[str, Any]:
        """is_own: whether it is the reward's doing if there is no reply in time, in any case."""
        try:
            self._connection.send_bytes(request)
            reply = self._received(next(self._requests), allowance)
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # it may be ending
            self.kill()
            code = self._process.returncode
            by_machine = code in (-signal.SIGKILL, -signal.SIGTERM)
            raise (Doubtful("killed", _end(code)) if by_machine else Failure(_end(code))) from error
        except ValueError as error:
            self.kill()
            raise Failure(f"sent a reply that cannot be read: {error}") from error
        if reply is None:
            is_own = is_own or allowance.is_used
            self.kill()
            limit = f"{allowance.seconds:g} s"
            if not is_own and allowance.longest > allowance.seconds:
                limit = f"{allowance.longest:g} s, nor computed for {limit}"
            late = f"did not answer within {limit}, and its process was killed"
            raise Failure(late) if is_own else Doubtful("late", late)
        return reply

    def _received(self, number: int, allowance: Allowance) -> dict[str, Any] | None:
        """The reply of a number, None if there is none in time. Raises EOFError if the process has
        ended.

        The connection alone does not show that: a child of the reward may hold its other end, and
        might even have sent a reply, so one with another number is dropped.
        """
        while (left := allowance.left) > 0:
            if self._connection.poll(min(POLL, left)):
                reply: dict[str, Any] = foreign_json.read(self._connection.recv_bytes())
                if reply["number"] == number:
                    return reply
            elif self._process.poll() is not None and not self._connection.poll():
                raise EOFError
        return None


def _kill(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    connection.close()
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.kill(process.pid, signal.SIGSTOP)  # it starts nothing more
            kill_descendants(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end(code: int | None) -> str:
    """How a process ended, a phrase to follow the reward's name."""
    if code is None or code >= 0:
        return f"ended its process (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", often because memory ran out" if -code == signal.SIGKILL else ""
    return f"lost its process, which was ended by {name}{hint}"


def _environment() -> dict[str, str]:
    """This process's environment, without the variables of a launch, and with its own GPU only."""
    environment = {k: v for k, v in os.environ.items() if k not in LAUNCHED}
    if "LOCAL_RANK" in os.environ and torch.cuda.is_initialized():
        number = torch.cuda.current_device()
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        device = visible.split(",")[number] if visible else str(number)
        environment["CUDA_VISIBLE_DEVICES"] = device
    return environment


def _program(descriptor: int) -> str:
    answer = f"from {server.__name__} import serve; serve({descriptor})"
    return f"import sys; sys.path[:] = {sys.path!r}; {answer}"
