"""Server: a small interpreter that forks a process for each program.

    python -I -S server.py CONTROL PACKAGES FOLDERS MODULES

It is started afresh, so it has nothing of a run in its memory, and loads what programs import,
since these can open no file. It never reads a program: it passes on descriptors. When the
other end of CONTROL is closed, by whatever end of the run, it ends with all that it has started.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LEFT_OUT = {
    *("antigravity", "idlelib", "this", "turtle", "turtledemo", "tkinter", "webbrowser"),
    *("multiprocessing", "pdb", "profile", "cProfile", "pydoc", "pydoc_data", "rlcompleter"),
    *("ensurepip", "lib2to3", "test", "venv", "zipapp", "site", "curses", "readline"),
    *("msilib", "nt", "ntpath", "winreg", "winsound", "ossaudiodev", "nis", "dbm", "xmlrpc"),
}
"""Of the standard library: what acts when it is imported, needs a screen, or is of no use here."""
_WHOLE = ("email", "email.mime", "encodings", "html", "importlib", "json", "logging", "xml.etree")
"""Packages of it whose modules are all loaded; some are imported only when they are needed."""
_SINGLE = ("_strptime", "collections.abc", "concurrent.futures.thread", "os.path", "unittest.mock")


def load_standard_library() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(sys.stdlib_module_names - LEFT_OUT):
            if not name.startswith("_"):
                _imported(name)
        for name in _WHOLE:
            package = importlib.import_module(name)
            for each in pkgutil.iter_modules(package.__path__, f"{name}."):
                _imported(each.name)
        for name in _SINGLE:
            _imported(name)


def load_modules(folders: Sequence[str], modules: Sequence[str]) -> None:
    """Import what programs may use besides, from these folders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.path += folders
        for name in modules:
            importlib.import_module(name)
    atexit._clear()


def _imported(name: str) -> None:
    with suppress(ImportError, OSError):  # not built on this machine: missing for programs, too
        importlib.import_module(name)


class Server:
    """Forks, and tells the run how each process ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._running = control, dict[int, int]()
        """Of a process: the number that the run gave it."""
        self._folders = dict[int, str]()
        """Of a number: a folder of the machine that is its process's alone."""
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        from groupwise_sandbox import confinement

        woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        confinement.prepare()
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(woken, selectors.EVENT_READ)
        self._say({"ready": True})
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control and not self._heard():
                    self._end()
                    return
                if key.fd == woken:
                    os.read(woken, 4096)
            self._reap()

    def _heard(self) -> bool:
        """Do what the run asks for; False if it has gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 4096, 3)
        except OSError:
            return False
        if not data:
            return False
        request: dict[str, Any] = json.loads(data)
        if "kill" in request:
            for process, number in self._running.items():
                if number == request["kill"]:
                    os.kill(process, signal.SIGKILL)
        else:
            self._fork(request["start"], descriptors, request["folder"])
        return True

    def _fork(self, number: int, descriptors: Sequence[int], folder: str) -> None:
        server = os.getpid()
        try:
            process = os.fork()
        except OSError as error:
            self._say({"number": number, "fault": str(error)})
            process = -1
        if process == 0:
            from groupwise_sandbox import child

            child.live(descriptors, server)
        for each in descriptors:
            os.close(each)
        if process > 0:
            self._running[process] = number
            if folder:
                self._folders[number] = folder

    def _reap(self) -> None:
        while self._running:
            process, status, used = os.wait4(-1, os.WNOHANG)
            if process == 0:
                return
            number = self._running.pop(process)
            self._folders.pop(number, None)  # the run removes it
            seconds = used.ru_utime + used.ru_stime
            ended = os.waitstatus_to_exitcode(status)
            self._say({"number": number, "status": ended, "seconds": seconds})

    def _say(self, message: Any) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self._end()
            os._exit(1)

    def _end(self) -> None:
        for process in self._running:
            os.kill(process, signal.SIGKILL)
        for process in self._running:
            os.waitpid(process, 0)
        if self._folders:
            os.execv("/bin/rm", ["rm", "-rf", "--", *self._folders.values()])


@contextmanager
def without_handlers_of_forks() -> Iterator[None]:
    """What is imported here does nothing after a fork. The standard library repairs locks that
    another thread may hold, and there is none; it takes a fifth of a program's time."""
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    try:
        yield
    finally:
        os.register_at_fork = register


def main() -> None:
    control, packages, folders, modules = sys.argv[1:]
    sys.path.insert(0, packages)
    with without_handlers_of_forks():
        from groupwise_sandbox import child  # noqa: F401  # before the fork, which is then short

        sys.path.remove(packages)
        load_standard_library()
    # Programs are ended before the run, for want of memory.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    load_modules(json.loads(folders), json.loads(modules))
    sys.modules["random"].seed(0)  # so that a program is as lucky each time
    gc.collect()
    gc.freeze()
    Server(socket.socket(fileno=int(control))).serve()


if __name__ == "__main__":
    main()
