"""DaemonThreads: calls that may hang, in threads that do not keep the program from ending."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """A daemon thread for each call: however many wait, the next one begins."""

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        future = Future[T]()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=call, daemon=True, name="episode").start()
        return future
