"""Worker: a separate process for one reward, which is called in its main thread.

The process is a fresh interpreter and does not import the training script. It leads a process
group, so that any process that the reward starts ends with it, and it ends when the run does.
"""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from groupwise.environment import ENVIRONMENTS
from groupwise.errors import UserError, message_of
from groupwise.rewards import Reward, SampleErrors
from groupwise.scoring import server
from groupwise.scoring.reward_call import Failure, RewardCall

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a distributed launch, which a worker must not inherit: it would wait for peers."""
STARTING = 3600.0
"""Seconds to start the process and load the reward, downloads included."""
POLL = 0.5
"""Seconds between checks whether the process is still alive."""


class Worker:
    """The process of one reward, started when it is first needed, and again after it was killed.

    Calls are made one at a time, in the order in which they were started.

    Raises UserError for a reward that cannot be pickled, or that has a state, which would be lost.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        if not hasattr(os, "killpg"):
            raise UserError(f"reward {reward.name!r}: `isolate` is not supported on this system")
        self._source = _pickled_reward(reward)
        self._process: _Process | None = None
        self._last: Future[Any] | None = None
        self._closed = 0
        self._starting = threading.Lock()

    def load(self) -> None:
        """Start the process now and load the reward. Raises UserError if that fails."""
        try:
            self._started(self._closed)
        except Failure as failure:
            raise UserError(f"reward {self.reward.name!r} {failure.reason}") from failure.__cause__

    def start(self, call: RewardCall) -> Callable[[], Any]:
        """Queue a call; returns a function that waits for its values, or raises SampleErrors or
        Failure."""
        if ENVIRONMENTS not in self.reward.parameters[0]:  # not for `**columns`: few can be pickled
            call.arguments.pop(ENVIRONMENTS, None)
        answer: Future[Any] = Future()
        before, closed = self._last, self._closed
        self._last = answer

        def work() -> None:
            if before is not None:
                wait([before])
            try:
                answer.set_result(self._answer(call, closed))
            except BaseException as error:
                answer.set_exception(error)

        # A daemon thread, so that a call that hangs cannot keep the program from ending.
        threading.Thread(target=work, daemon=True, name=self.reward.name).start()
        return answer.result

    def close(self) -> None:
        """End the process, if there is one; running and queued calls are cancelled."""
        with self._starting:
            self._closed += 1
            if self._process is not None:
                self._process.kill()

    def _answer(self, call: RewardCall, closed: int) -> Any:
        process = self._started(closed)
        try:
            request = _pickled(call)
        except Exception as error:  # objects in the rows may raise anything
            raise UserError(
                f"reward {self.reward.name!r} is isolated, but its arguments cannot be sent to its "
                f"process: {message_of(error)}"
            ) from error
        reply = process.reply(request, self.reward.deadline)
        call.extra, call.metrics = reply["extra"], reply["metrics"]
        call.seconds, call.reading = reply["seconds"], reply["reading"]
        _check(reply)
        if "errors" in reply:
            errors = {int(row): reason for row, reason in reply["errors"].items()}
            raise SampleErrors(reply["values"], errors)
        return reply["values"]

    def _started(self, closed: int) -> "_Process":
        """The process, which has loaded the reward.

        closed: the number of `close` calls when this call was queued; if there was one since,
        nothing waits for the answer any more.
        """
        with self._starting:
            if closed != self._closed:
                raise Failure("was cancelled, since the run has ended")
            if self._process is not None:
                if self._process.is_alive:
                    return self._process
                self._process.kill()
            process = self._process = _Process()
        try:
            _check(process.reply(self._source, STARTING))
        except Failure:
            process.kill()
            raise
        return process


class _Process:
    """A fresh interpreter that runs `serve`; kill: ends it with all processes of its group, also
    where nobody calls it, when this object is dropped or this interpreter ends."""

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

    def reply(self, request: bytes, deadline: float) -> dict[str, Any]:
        """Send a request and wait for its reply. Raises Failure if the process ends, or if there is
        no reply in time, and then kills it."""
        try:
            self._connection.send_bytes(request)
            reply = self._received(next(self._requests), deadline)
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # it may be ending
            self.kill()
            raise Failure(_end_of(self._process.returncode)) from error
        if reply is None:
            self.kill()
            raise Failure(f"did not answer within {deadline:g} s, and its process was killed")
        return reply

    def _received(self, number: int, deadline: float) -> dict[str, Any] | None:
        """The reply of a number, None if there is none in time. Raises EOFError if the process has
        ended.

        The connection alone does not show that: a child of the reward may hold its other end, and
        might even have sent a reply, so one with another number is dropped.
        """
        end = time.monotonic() + deadline
        while (left := end - time.monotonic()) > 0:
            if self._connection.poll(min(POLL, left)):
                reply: dict[str, Any] = json.loads(self._connection.recv_bytes())
                if reply["number"] == number:
                    return reply
            elif self._process.poll() is not None and not self._connection.poll():
                raise EOFError
        return None


def _kill(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    connection.close()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_of(code: int | None) -> str:
    """How a process ended, a phrase to follow the reward's name."""
    if code is None or code >= 0:
        return f"ended its process (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", often because memory ran out" if -code == signal.SIGKILL else ""
    return f"lost its process, which was ended by {name}{hint}"


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback in the worker, as the cause of a failure."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _check(reply: dict[str, Any]) -> None:
    """Raise the Failure that a reply reports."""
    if "reason" in reply:
        failure = Failure(reply["reason"], is_bug=reply["is_bug"], place=reply["place"])
        raise failure from RemoteTraceback(reply["traceback"])


# ---- sending


def _pickled_reward(reward: Reward) -> bytes:
    """The reward, or a function that builds it, pickled; UserError if neither can be pickled."""
    if reward.members.refresh is not None or reward.members.state_dict is not None:
        raise UserError(
            f"reward {reward.name!r} has a state, which would be lost if its process were killed, "
            f"so it cannot be isolated: leave `isolate` out, and train in the main thread"
        )
    try:
        return _pickled((reward.remake is not None, reward.remake or reward.function))
    except Exception as error:  # objects in it may raise anything
        raise UserError(
            f"reward {reward.name!r} cannot be sent to a worker process: {error}. Put it into "
            f"a module of its own, and import it from there or name it as `module:attribute`"
        ) from error


class _Pickler(pickle.Pickler):
    """Pickles for a process that cannot import `__main__`; tensors are sent from CPU memory."""

    def reducer_override(self, value: Any) -> Any:
        is_named = isinstance(value, type | FunctionType)
        if is_named and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in __main__, which the worker does not import"
            )
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return value.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


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
