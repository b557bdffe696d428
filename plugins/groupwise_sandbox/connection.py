"""Connection: the run's side of the server: starts it, and passes on what it reports."""

import itertools
import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import Ended, Process, SandboxError

START_SECONDS = 120.0
"""The most seconds for a server to load what programs import."""
_SERVER = Path(__file__).with_name("server.py")
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
_LOST = "the sandbox's server has ended"


class Connection:
    """A server and the programs that it runs. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._control, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self._processes = dict[int, Process]()
        self.is_lost = False
        """Whether the server has ended."""

    def wait_until_ready(self) -> bool:
        """Whether the server, which holds the other end by now, has begun."""
        self.theirs.close()
        self._control.settimeout(START_SECONDS)
        try:
            ready = self._control.recv(4096)
        except TimeoutError:
            ready = b""
        self._control.settimeout(None)
        if ready:
            threading.Thread(target=self._listen, daemon=True, name="sandbox").start()
        return bool(ready)

    @contextmanager
    def started(
        self,
        payload: Mapping[str, Any],
        limits: Limits,
        look: Callable[[], Ended | None] | None = None,
    ) -> Iterator[Process]:
        """A process that runs a payload; ended where the block is left.

        look: what it takes too much of, which ends it.

        Raises SandboxError if the server is gone.
        """
        number = next(self._numbers)
        is_command = payload["mode"] == "command"
        process = Process(
            limits, lambda: self._send({"kill": number}), is_command=is_command, look=look
        )
        with self._lock:
            self._processes[number] = process
        try:
            held = [process.theirs.fileno(), process.stdout, process.stderr]
            folder = payload.get("folder", {}).get("root", "")
            sent = self._send({"start": number, "folder": folder}, held)
            process.begun()
            if not sent:
                raise SandboxError(_LOST)
            held_to = {"seconds": limits.seconds, "memory": limits.memory}
            process.send({"stdin": "", **payload, **held_to})
            yield process
        finally:
            with self._lock:
                self._processes.pop(number, None)
                process.close()

    def close(self) -> None:
        """End the server and what it runs."""
        with suppress(OSError):  # the server has ended
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()

    def _send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Whether the server is there to get it."""
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], [*descriptors])
        except OSError:
            return False
        return True

    def _listen(self) -> None:
        while True:
            try:
                data = self._control.recv(4096)
            except OSError:
                data = b""
            if not data:
                with self._lock:
                    self.is_lost = True
                    for process in self._processes.values():
                        process.reported({"fault": _LOST})
                return
            report = json.loads(data)
            with self._lock:
                ended = self._processes.get(report["number"])
                if ended is not None:
                    ended.reported(report)


class Launched(Connection):
    """A server that was started for a run."""

    def __init__(self, modules: Sequence[str]) -> None:
        """modules: those that programs may import besides the standard library's.

        Raises SandboxError if the server does not start.
        """
        super().__init__()
        folders = [each for each in sys.path if each]  # the environment's, however it is made
        line = self.theirs.fileno()
        with tempfile.TemporaryFile() as errors:
            command = [sys.executable, "-I", "-S", str(_SERVER), str(line)]
            self._server = subprocess.Popen(
                [*command, str(_SERVER.parents[1]), json.dumps(folders), json.dumps([*modules])],
                pass_fds=[line],
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is the run's
            )
            if not self.wait_until_ready():
                self.close()
                errors.seek(0)
                words = errors.read().decode("utf-8", "replace").strip()[-1000:]
                raise SandboxError(f"the sandbox's server did not start: {words or 'in time'}")

    def close(self) -> None:
        super().close()
        self._server.kill()
        self._server.wait()
