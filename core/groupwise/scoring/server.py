"""Server: the main loop of a worker process, which answers the calls of one reward in order."""

import asyncio
import json
import os
import pickle
import queue
import signal
import threading
import traceback
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import torch

from groupwise.kit.descendants import adopt_orphans, kill_descendants
from groupwise.kit.errors import message_of
from groupwise.rewards import Members, SampleErrors, is_async
from groupwise.scoring.forks import ending_forks
from groupwise.scoring.reward_call import Failure, RewardCall, listed

LOGGED: dict[str, Any] = {"extra": {}, "metrics": {}, "seconds": 0.0, "reading": None}
"""Part of each reply: what a call logged, how long it took, and the completion read last."""


def serve(descriptor: int) -> None:
    """Answer requests in order: the first is the reward, which is loaded; all others are calls.

    A reply has the number of its request. No exception ends the process, for the reward may raise
    any; Ctrl-C does not reach it.
    """
    os.set_inheritable(descriptor, False)
    adopt_orphans()
    connection = Connection(descriptor)
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    function: Any = None
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    torch.set_grad_enabled(False)
    for number in count():
        request, reply = requests.get(), {}
        try:
            with ending_forks():
                if number == 0:
                    function = _loaded(request)
                else:
                    reply = _reply(function, pickle.loads(request), loop)
        except BaseException as error:
            reply = _reason(Failure.of(error), error)
        connection.send_bytes(_encoded({"number": number, **LOGGED, **reply}))


def _receive(connection: Connection, requests: "queue.Queue[bytes]") -> None:
    """Queue requests; when the parent process ends, kill this process with all that it started."""
    try:
        while True:
            requests.put(connection.recv_bytes())
    except (EOFError, OSError):
        kill_descendants(os.getpid())
        os.killpg(0, signal.SIGKILL)


def _loaded(request: bytes) -> Any:
    """The reward's function, with its models."""
    is_factory, source = pickle.loads(request)
    function = source() if is_factory else source
    load = Members.of(function).load
    if load is not None:
        load()
    return function


def _reply(function: Any, call: RewardCall, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    reply: dict[str, Any] = {}
    try:
        if is_async(function):
            reply["values"] = loop.run_until_complete(call.wait(function))
        else:
            reply["values"] = call.run(function)
    except SampleErrors as failure:
        errors = {int(row): message_of(reason) for row, reason in failure.errors.items()}
        reply |= {"values": listed(failure.values), "errors": errors}
    except Failure as failure:
        reply |= _reason(failure, failure.__cause__ or failure)
    logged = {"extra": call.extra, "metrics": call.metrics}
    return {**reply, **logged, "seconds": call.seconds, "reading": call.reading}


def _reason(failure: Failure, cause: BaseException) -> dict[str, Any]:
    shown = "".join(traceback.format_exception(cause))
    described = {"reason": failure.reason, "is_bug": failure.is_bug, "place": failure.place}
    return {**described, "traceback": shown}


def _encoded(reply: dict[str, Any]) -> bytes:
    """As JSON, not pickle: a process that parses a model's output must not be able to run code here
    by its reply."""
    try:
        return json.dumps(reply, default=_words).encode()
    except Exception as error:  # odd keys, cycles, huge integers, classes of the reward's own
        failure = Failure(
            f"returned or logged a value that cannot be sent back: {message_of(error)}"
        )
        kept = {name: reply[name] for name in ("number", "seconds")}
        return json.dumps({**LOGGED, **kept, **_reason(failure, error)}).encode()


def _words(value: Any) -> Any:
    """A value that JSON has no form for: as a list or a number if it converts to one, else its
    repr."""
    if hasattr(value, "tolist"):
        return value.tolist()
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)
