"""Runs functions on untrusted input in worker processes that can be killed.

Parsers of model output may hang, crash or fill the memory. An alarm signal does not help: it does
not stop C code, and works in the main thread only. So every item runs in a pool of processes
(pebble). The pool starts at its first use and serves the whole process; a forked process starts its
own. This module imports neither torch nor groupwise, so that workers start quickly and use little
of their memory limit.

An item has a limit of processor time, which a busy machine does not shorten; the kernel ends its
worker there. Wall time is the last resort, for items that sleep, and is counted from when the
worker begins the item: it has started and imported what it needs before.
"""

import atexit
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import popen_spawn_posix, spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from types import FunctionType, SimpleNamespace
from typing import Any, Literal, TypeVar

from pebble import ProcessExpired, ProcessPool

from groupwise_verifiable.outcome import WorkerFailure

Item = TypeVar("Item")
Value = TypeVar("Value")

MEMORY_LIMIT = 2 * 1024**3
_MOST_WORKERS = 8
_LAST_RESORT = 5  # wall time of an item, in multiples of its processor time
_STARTING = 45.0  # seconds in which a worker must start and take an item
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # as of a machine that is out of memory


def map_each(
    function: Callable[[Item], Value],
    items: Sequence[Item],
    *,
    timeout: float,
    within: float = math.inf,
) -> list[Value | WorkerFailure]:
    """Returns `function(item)` for every item, in order, each computed in a killable worker.

    The result is a `WorkerFailure` for an item that takes more than `timeout` seconds of processor
    time, crashes its process, runs out of memory or raises; all others finish. What may be the
    machine's doing (no worker takes the item, the last resort of wall time passes, the process is
    killed) is tried once more, by fresh workers: the same end twice is the item's, unless no worker
    took it. Other failures keep `may_pass`, as do those of items that are not done `within` that
    many seconds. `function` must be importable by name from a module other than `__main__`, which
    workers do not load.
    """
    if function.__module__ == "__main__":
        raise ValueError(
            f"{function.__qualname__} is defined in __main__, which workers cannot import"
        )
    with _Shared.lock:
        end = time.monotonic() + within
        outcomes = _attempt(function, items, range(len(items)), timeout, end)
        doubtful = {i: o for i, o in outcomes.items() if _may_pass(o)}
        if doubtful and time.monotonic() < end:
            for index, again in _attempt(function, items, [*doubtful], timeout, end).items():
                is_own = _may_pass(again) and again.kind == doubtful[index].kind != "unstarted"
                outcomes[index] = replace(again, may_pass=False) if is_own else again
    return [outcomes[index] for index in range(len(items))]


def _may_pass(outcome: Any) -> bool:
    return isinstance(outcome, WorkerFailure) and outcome.may_pass


def _attempt(
    function: Callable[[Item], Value],
    items: Sequence[Item],
    indices: Sequence[int],
    timeout: float,
    end: float,
) -> dict[int, Any]:
    """The outcomes of the items at `indices`; ends the workers if one of them may pass.

    Items are taken in order, so the first that is not done runs, or is the next that a worker
    takes: if neither ends in time, no worker will take any.
    """
    pool, wall = _pool(), _LAST_RESORT * timeout
    futures: dict[int, Any] = {}
    outcomes: dict[int, Any] = {}
    is_stuck = False
    try:
        for index in indices:
            arguments = (function, items[index], timeout)
            futures[index] = pool.schedule(_guarded, args=arguments, timeout=wall)
        for index, future in futures.items():
            left = min(wall + _STARTING, end - time.monotonic())
            is_stuck = not wait([future], 0 if is_stuck else max(0, left)).done or is_stuck
            outcomes[index] = _outcome(future, timeout)
    except RuntimeError:
        if pool.active:
            raise
    finally:
        for future in futures.values():
            future.cancel()
    outcomes |= {index: _UNSTARTED for index in indices if index not in outcomes}
    if any(map(_may_pass, outcomes.values())):
        _close()
    return outcomes


_UNSTARTED = WorkerFailure(
    "unstarted",
    "was not checked in time: its worker process did not start, or other answers took the time",
    may_pass=True,
)


def _outcome(future: Any, timeout: float) -> Any:  # pebble's futures hold anything
    if not future.done():
        return _UNSTARTED
    limit = f"{timeout:g} s of processor time"
    try:
        return _opened(future.result())
    except (BrokenProcessPool, CancelledError):
        return _UNSTARTED
    except TimeoutError:
        reason = f"took longer than {_LAST_RESORT * timeout:g} s, without {limit}, and was stopped"
        return WorkerFailure("hung", reason, may_pass=True)
    except ProcessExpired as expired:
        if expired.exitcode == -signal.SIGPROF:
            return WorkerFailure("hung", f"took longer than {limit} and was stopped")
        reason = f"ended its process (exit code {expired.exitcode})"
        return WorkerFailure("crashed", reason, may_pass=expired.exitcode in _FROM_OUTSIDE)


def _guarded(
    function: Callable[[Item], Value], item: Item, timeout: float
) -> tuple[Literal["value"], Value] | tuple[Literal["memory", "raised"], str]:
    """The value, or the error as text: an exception object may not be picklable."""
    signal.setitimer(signal.ITIMER_PROF, timeout)
    try:
        return "value", function(item)
    except MemoryError:
        return "memory", "ran out of memory"
    except Exception as error:  # any error concerns this item only
        return "raised", f"raised {type(error).__name__}: {str(error)[:500]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _opened(answer: tuple[str, Any]) -> Any:  # the function's own value
    kind, value = answer
    if kind == "value":
        return value
    return WorkerFailure("memory" if kind == "memory" else "raised", value)


def _limit(memory: int) -> None:
    """Sets a worker's limits, before its first item."""
    import resource  # only workers need it, and it exists on POSIX only

    # Python's signal handlers do not run during C code; the default action kills the process.
    for number in (signal.SIGTERM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # each thread's stack counts towards the limit
    warnings.simplefilter("ignore")  # parsers' warnings about model output are of no use
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _preparation(name: str) -> dict[str, Any]:
    data = spawn.get_preparation_data(name)
    return {key: value for key, value in data.items() if not key.startswith("init_main")}


class _Popen(popen_spawn_posix.Popen):
    """Starts a fresh interpreter that does not run the parent's main module.

    Spawning normally imports that module again: a training script without an `if __name__` guard
    would start a second training, and one that imports torch would use up the memory limit.
    """

    _launch = FunctionType(
        vars(popen_spawn_posix.Popen)["_launch"].__code__,  # the same code with another `spawn`
        {
            **vars(popen_spawn_posix),
            "spawn": SimpleNamespace(
                get_preparation_data=_preparation,
                get_command_line=spawn.get_command_line,
                get_executable=spawn.get_executable,
            ),
        },
    )


class _Process(SpawnProcess):
    """Its end is seen at the second look. Pebble learns in one thread that a worker took an item,
    and in another that it has ended: where it sees the end first, it takes the pool for broken, and
    no item for the one that ended it. It looks ten times a second."""

    _has_ended = False

    def is_alive(self) -> bool:
        seen, self._has_ended = self._has_ended, not super().is_alive()
        return not (seen and self._has_ended)

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Popen:  # noqa: N802 - multiprocessing's name
        return _Popen(process_obj)


class _Context(SpawnContext):
    Process = _Process


class _Shared:
    """The pool of this process, and the lock of the thread that uses it."""

    pool: ProcessPool | None = None
    lock = threading.Lock()


def _pool() -> ProcessPool:
    """The pool of this process, started if needed."""
    if _Shared.pool is None or not _Shared.pool.active:
        _close()
        _Shared.pool = ProcessPool(
            max_workers=_worker_count(),
            initializer=_limit,
            initargs=(MEMORY_LIMIT,),
            context=_Context(),
        )
        # A child of multiprocessing runs finalizers, but no atexit functions, at its end; without
        # this one it would wait for its idle workers forever.
        util.Finalize(None, _close, exitpriority=100)
    return _Shared.pool


def _worker_count() -> int:
    """The machine's cores divided by its training processes, at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(_MOST_WORKERS, (cores or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _close() -> None:
    pool, _Shared.pool = _Shared.pool, None
    if pool is not None:
        stop: Callable[[], None] = pool.stop
        stop()
        pool.join()


def _forget() -> None:
    """In a forked child: do not use the parent's pool, nor its lock, which may stay locked."""
    _Shared.pool, _Shared.lock = None, threading.Lock()


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)
