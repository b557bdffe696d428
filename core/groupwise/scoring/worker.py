"""Worker: a separate process for one reward, which is called in its main thread.

The process is a fresh interpreter and does not import the training script. Any process that the
reward starts ends when it is ended, and it ends when the run does.

An executor of `concurrent.futures` would not do: it cannot end a call at its deadline, and if one
of its processes dies, the calls of all others fail, too.
"""

import io
import math
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import FunctionType
from typing import Any

from torch import Tensor

from groupwise.environment import ENVIRONMENTS
from groupwise.kit import terminal
from groupwise.kit.errors import UserError, message_of
from groupwise.rewards import Reward, SampleErrors
from groupwise.scoring.reward_call import Failure, RewardCall
from groupwise.scoring.worker_process import Doubtful, WorkerProcess


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
        self._process: WorkerProcess | None = None
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
        try:
            request = _pickled(call)
        except Exception as error:  # objects in the rows may raise anything
            raise UserError(
                f"reward {self.reward.name!r} is isolated, but its arguments cannot be sent to its "
                f"process: {message_of(error)}"
            ) from error
        reply = self._reply(request, call.size, closed)
        call.extra, call.metrics = reply["extra"], reply["metrics"]
        call.seconds, call.reading = reply["seconds"], reply["reading"]
        _check(reply)
        if "errors" in reply:
            errors = {int(row): reason for row, reason in reply["errors"].items()}
            raise SampleErrors(reply["values"], errors)
        return reply["values"]

    def _reply(self, request: bytes, size: int, closed: int) -> dict[str, Any]:
        """The reply to a request about `size` completions.

        What the machine may have caused is tried once more, in a fresh process. The same end twice
        is the reward's; if the process then does not start, or ends otherwise, all samples are
        failed, and no run is stopped.
        """
        try:
            return self._replied(request, closed)
        except Doubtful as failure:
            if closed != self._closed:
                raise
            first = failure
        terminal.say(
            f"note: reward {self.reward.name!r} {first.reason}; it is called once more, in another "
            f"process, since the machine may be the reason"
        )
        try:
            return self._replied(request, closed)
        except Doubtful as second:
            if second.end == first.end != "unstarted":
                raise
            values, reasons = [math.nan] * size, dict.fromkeys(range(size), second.reason)
            raise SampleErrors(values, reasons) from second

    def _replied(self, request: bytes, closed: int) -> dict[str, Any]:
        process, reward = self._started(closed), self.reward
        return process.reply(request, reward.deadline, waits=reward.is_async)

    def _started(self, closed: int) -> WorkerProcess:
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
            process = self._process = WorkerProcess()
        try:
            _check(process.load(self._source))
        except Failure:
            process.kill()
            raise
        return process


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
