"""Runs functions on untrusted input in worker processes that can be killed.

Parsers of model output may hang, crash or fill the memory. An alarm signal does not help: it does
not stop C code, and works in the main thread only. So every item runs in a pool of processes
(pebble), which kills a worker at its deadline. The pool starts at its first use and serves the
whole process; a forked process starts its own. This module imports neither torch nor groupwise, so
that workers start quickly and use little of their memory limit.
"""

import atexit
import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
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
_ATTEMPTS = 3  # when a pool breaks between two items, unfinished items go to a new pool


def map_each(
    function: Callable[[Item], Value], items: Sequence[Item], *, timeout: float
) -> list[Value | WorkerFailure]:
    """Returns `function(item)` for every item, in order, each computed in a killable worker.

    The result is a `WorkerFailure` for an item that runs longer than `timeout` seconds, crashes its
    process, runs out of memory or raises; all others finish. `function` must be importable by name
    from a module other than `__main__`, which workers do not load.
    """
    if function.__module__ == "__main__":
        raise ValueError(
            f"{function.__qualname__} is defined in __main__, which workers cannot import"
        )
    outcomes: dict[int, Value | WorkerFailure] = {}
    for _ in range(_ATTEMPTS):
        missing = [index for index in range(len(items)) if index not in outcomes]
        if not missing:
            break
        outcomes.update(_attempt(function, items, missing, timeout))
    if len(outcomes) < len(items):
        raise RuntimeError(
            f"the worker processes for {function.__module__}.{function.__qualname__} ended "
            f"{_ATTEMPTS} times before they took any work; does importing that module fail?"
        )
    return [outcomes[index] for index in range(len(items))]


def _attempt(
    function: Callable[[Item], Value], items: Sequence[Item], indices: Sequence[int], timeout: float
) -> dict[int, Value | WorkerFailure]:
    """The outcomes of the items at `indices`, except those that a broken pool did not finish."""
    pool = _pool()
    futures: dict[int, Any] = {}
    outcomes: dict[int, Value | WorkerFailure] = {}
    try:
        for index in indices:
            arguments = (function, items[index])
            futures[index] = pool.schedule(_guarded, args=arguments, timeout=timeout)
        for index, future in futures.items():
            outcomes[index] = _outcome(future, timeout)
    except (BrokenProcessPool, CancelledError):
        return outcomes
    except RuntimeError:  # another thread's items broke the pool while these were scheduled
        if pool.active:
            raise
        return outcomes
    finally:
        for future in futures.values():
            future.cancel()
    return outcomes


def _outcome(future: Any, timeout: float) -> Any:  # pebble's futures hold anything
    try:
        return _opened(future.result())
    except TimeoutError:
        return WorkerFailure("hung", f"took longer than {timeout:g} s and was stopped")
    except ProcessExpired as expired:
        return WorkerFailure("crashed", f"ended its process (exit code {expired.exitcode})")


def _guarded(
    function: Callable[[Item], Value], item: Item
) -> tuple[Literal["value"], Value] | tuple[Literal["memory", "raised"], str]:
    """The value, or the error as text: an exception object may not be picklable."""
    try:
        return "value", function(item)
    except MemoryError:
        return "memory", "ran out of memory"
    except Exception as error:  # any error concerns this item only
        return "raised", f"raised {type(error).__name__}: {str(error)[:500]}"


def _opened(answer: tuple[str, Any]) -> Any:  # the function's own value
    kind, value = answer
    if kind == "value":
        return value
    return WorkerFailure("memory" if kind == "memory" else "raised", value)


def _limit(memory: int) -> None:
    """Sets a worker's limits, before its first item."""
    import resource  # only workers need it, and it exists on POSIX only

    # Python's signal handlers do not run during C code; the default action kills the process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Popen:  # noqa: N802 - multiprocessing's name
        return _Popen(process_obj)


class _Context(SpawnContext):
    Process = _Process


class _Shared:
    """The pool of this process, and the lock that guards its creation."""

    pool: ProcessPool | None = None
    lock = threading.Lock()


def _pool() -> ProcessPool:
    """The pool of this process, started if needed."""
    with _Shared.lock:
        if _Shared.pool is None or not _Shared.pool.active:
            _close()
            _Shared.pool = ProcessPool(
                max_workers=_worker_count(),
                initializer=_limit,
                initargs=(MEMORY_LIMIT,),
                context=_Context(),
            )
            # A child of multiprocessing runs finalizers, but no atexit functions, at its end;
            # without this one it would wait for its idle workers forever.
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
