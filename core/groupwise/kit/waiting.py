"""Waiting: for processes that are at work, as long as they live, without a limit on the work.

A collective of torch gives up after the timeout of its process group (`train.timeout`), whatever
the others do. Where one of them may work for longer, as on the files of a checkpoint, the others
wait here before the collective: at a key of the store that all processes share, while whoever works
counts up another key. Who does not count for as long as the timeout is lost.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from torch import distributed
from torch._C._distributed_c10d import Store

from groupwise.kit.errors import UserError

T = TypeVar("T")

SECONDS = 600.0
"""The default of `train.timeout`."""
BEATS = 4
"""How often in a timeout a working process shows that it lives."""


@dataclass
class _Waits:
    """timeout: in seconds; number: of waits so far, equal on all processes."""

    timeout: float = SECONDS
    number: int = 0


_waits = _Waits()


def limit(seconds: float) -> None:
    """Set the timeout of this process's collectives, in seconds."""
    _waits.timeout = seconds
    if distributed.is_initialized():
        # accelerate makes the group before a run's configuration is compared. Before torch 2.15
        # there was no public function for a group that exists.
        set_timeout = getattr(distributed, "set_timeout", None)
        set_timeout = set_timeout or distributed.distributed_c10d._set_pg_timeout
        set_timeout(timedelta(seconds=seconds), None)


def timeout() -> float:
    """Of this process's collectives, in seconds."""
    return _waits.timeout


def patiently(call: Callable[[], T], *, ranks: Sequence[int]) -> T | None:
    """Call it if this process is one of `ranks`, and return when all of them have called it.

    A collective. Raises UserError where one of them no longer shows that it lives; errors of the
    call are raised after it was told that the call is over.
    """
    _waits.number += 1
    rank, store = distributed.get_rank(), distributed.distributed_c10d._get_default_store()
    answer = None
    with _beating(store, rank):
        try:
            if rank in ranks:
                answer = call()
        finally:
            store.set(f"over {_waits.number} {rank}", "")
        for other in ranks:
            _wait(store, f"over {_waits.number} {other}", other)
    return answer


def _wait(store: Store, key: str, rank: int) -> None:
    before = -1
    while True:
        try:
            store.wait([key], timedelta(seconds=_waits.timeout))
            return
        except distributed.DistStoreError as error:
            beats = store.add(f"beats {rank}", 0)
            if beats == before:
                raise UserError(
                    f"process {rank} of this run shows no sign of life for {_waits.timeout:g} s "
                    f"(train.timeout); its own output may say why. Started again with "
                    f"--auto-resume, the run goes on from its last checkpoint"
                ) from error
            before = beats


@contextmanager
def _beating(store: Store, rank: int) -> Iterator[None]:
    """A context in which a thread counts up this process's key, also while Python computes."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_waits.timeout / BEATS):
            store.add(f"beats {rank}", 1)

    thread = threading.Thread(target=beat, daemon=True, name="sign of life")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
