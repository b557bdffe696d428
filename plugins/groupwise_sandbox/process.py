"""Process: one program that is running, as the run sees it."""

import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGPROF, SIGXCPU
from typing import Any, Literal, TypeAlias

from groupwise.kit.foreign_json import read as read_json
from groupwise_sandbox import frames
from groupwise_sandbox.limits import PERIOD, WAITING_FACTOR, Limits

_MESSAGE = 4 << 20
"""Bytes of one message of a program."""
_ERRORS = 4096
"""Bytes of the end of stderr that are kept."""
_OUT_OF_MEMORY = (b"MemoryError", b"std::bad_alloc", b"heap out of memory")
"""What Python, C++ and JavaScript write."""
_PART = 1 << 16
_END_SECONDS = 60.0
"""The most seconds from the end of a program that was killed to the report of it."""

Ended: TypeAlias = Literal["exit", "signal", "time", "memory", "output", "space"]


class SandboxError(RuntimeError):
    """The sandbox itself failed, whatever the program is: nothing is known of it."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a program ended."""

    ended: Ended
    """By its own end, by a crash ("signal"), or by the limit that it reached."""
    status: int
    """Its exit status; below 0, the signal that ended it. Says nothing of whether it is right."""
    stdout: bytes
    """What it printed, at most `Limits.output` bytes."""
    stderr: str
    """The end of what it wrote there, such as a traceback."""
    seconds: float
    """Processor time."""

    @property
    def why(self) -> str:
        """How it ended, in words."""
        if self.ended != "exit":
            return _WORDS[self.ended]
        last = self.stderr.strip().rpartition("\n")[2]
        return f"ended with status {self.status}" + (f": {last}" if last else "")


_WORDS = {
    "signal": "crashed",
    "time": "took too much time",
    "memory": "took too much memory",
    "output": "printed too much",
    "space": "wrote too much",
}


class Process:
    """One running program; used by one thread."""

    def __init__(
        self,
        limits: Limits,
        kill: Callable[[], object],
        *,
        is_command: bool = False,
        look: "Callable[[], Ended | None] | None" = None,
    ) -> None:
        """kill: ends the program, if it runs.
        is_command: the messages are those of bubblewrap.
        look: what it takes too much of, where the kernel does not see to it.
        """
        self._limits, self._kill = limits, kill
        self._channel, self.theirs = socket.socketpair()
        self._stdout, self.stdout = os.pipe2(os.O_CLOEXEC)
        self._stderr, self.stderr = os.pipe2(os.O_CLOEXEC)
        self._woken = os.eventfd(0, os.EFD_CLOEXEC)
        self._report: dict[str, Any] | None = None
        self._out, self._err, self._printed = bytearray(), bytearray(), 0
        self._messages = list[bytes]()
        self._reader = frames.Lines() if is_command else frames.Reader(_MESSAGE)
        self._is_begun = is_command  # of a command bubblewrap says it, at its end
        self._number: int | None = None
        """Of the process on this machine, if it is begun and no command."""
        self._reached: Ended | None = None
        self._is_held_up = False
        """Whether it waited so long for a processor that nothing is known of its time."""
        self._until = time.monotonic() + limits.wall_seconds
        self._look, self._looked = look, 0.0
        self._selector = selectors.DefaultSelector()
        for each in (self._stdout, self._stderr, self._channel, self._woken):
            self._selector.register(each, selectors.EVENT_READ)

    def begun(self) -> None:
        """Close what the program alone holds from now on."""
        self.theirs.close()
        os.close(self.stdout)
        os.close(self.stderr)

    def reported(self, report: dict[str, Any]) -> None:
        """How the process ended; called once, in another thread."""
        self._report = report
        os.eventfd_write(self._woken, 1)

    def send(self, message: Any) -> None:
        """Send a message to the program, which may have ended, or may never read it."""
        try:
            self._channel.settimeout(max(0.001, self._until - time.monotonic()))
            self._channel.sendall(frames.packed(message))
        except TimeoutError:
            self._stop("time")
        except OSError:
            pass  # it has ended, and its report says how

    def hand_over(self, line: socket.socket) -> None:
        """Give the program a socket of its own."""
        with suppress(OSError):  # it has ended
            socket.send_fds(self._channel, [b"."], [line.fileno()])

    def message(self) -> Any:
        """The next message of the program; None if it ended, or wrote anything else."""
        while not self._messages and self._report is None and self._reached is None:
            self._step()
        if not self._messages and self._reached is None:
            self._drain()
        if not self._messages:
            return None
        try:
            return read_json(self._messages.pop(0))
        except ValueError:
            return None

    @property
    def first(self) -> int | None:
        """Of a command: the number of its first process on this machine, once bubblewrap has said
        it."""
        started = read_json(self._messages[0]) if self._messages else {}
        return started.get("child-pid") if isinstance(started, dict) else None

    def hang_up(self) -> None:
        """Tell the program that no further message comes."""
        with suppress(OSError):  # it has ended
            self._channel.shutdown(socket.SHUT_WR)

    def finished(self) -> Finished:
        """Wait for the end of the program. Raises SandboxError if it cannot be known."""
        while self._report is None:
            if not self._step() and self._reached is not None:
                raise SandboxError("a program that was ended did not end")
        self._drain()
        if "fault" in self._report:
            raise SandboxError(self._report["fault"])
        if not self._is_begun and self._reached is None:
            last = self._err.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise SandboxError(f"a program could not be begun: {last}")
        status, seconds = int(self._report["status"]), float(self._report["seconds"])
        if self._reached == "time" and self._is_held_up and seconds < self._limits.seconds:
            raise SandboxError("the machine was too busy to give a program its processor time")
        return Finished(
            ended=self._reached or self._ending(status, seconds),
            status=status,
            stdout=bytes(self._out),
            stderr=self._err.decode("utf-8", "replace"),
            seconds=seconds,
        )

    def close(self) -> None:
        """End the program, and let go of it."""
        self._kill()
        self._selector.close()
        self._channel.close()
        for each in (self._stdout, self._stderr, self._woken):
            os.close(each)

    def _ending(self, status: int, seconds: float) -> Ended:
        if status in (-SIGPROF, -SIGXCPU) or seconds > self._limits.seconds:
            return "time"
        if status != 0 and any(words in self._err for words in _OUT_OF_MEMORY):
            return "memory"
        return "signal" if status < 0 else "exit"

    def _step(self) -> bool:
        """Wait for something to read, or for the last resort; False if there was nothing."""
        left = self._until - time.monotonic()
        if left <= 0 and self._reached is None and (left := self._prolonged(left)) <= 0:
            self._stop("time")
        if self._look is not None and self._reached is None:
            left = min(left, self._looked_at(self._look))
        wait = max(0.0, left) if self._reached is None else _END_SECONDS
        ready = self._selector.select(wait)
        for key, _ in ready:
            self._read(key.fileobj)
        return bool(ready)

    def _prolonged(self, left: float) -> float:
        """The seconds that are left where the wall time is over: those in which the program waited
        for a processor do not count, up to a bound."""
        waited = 0.0 if self._number is None else waited_of(self._number)
        most = WAITING_FACTOR * self._limits.wall_seconds
        self._is_held_up = waited > most
        left += min(waited, most)
        return max(left, PERIOD) if left > 0 else left

    def _looked_at(self, look: Callable[[], Ended | None]) -> float:
        """Look at what the program takes; the seconds until this is to be done again."""
        if time.monotonic() - self._looked >= PERIOD:
            if (limit := look()) is not None:
                self._stop(limit)
            self._looked = time.monotonic()
        return PERIOD

    def _read(self, source: Any) -> bool:
        """Read what there is of one source; False at its end."""
        if source is self._woken:
            return False
        try:
            if source is self._channel:
                data = self._channel.recv(_PART, socket.MSG_DONTWAIT)
            else:
                data = os.read(source, _PART)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            if source in self._selector.get_map():
                self._selector.unregister(source)
            return False
        if source is self._channel:
            self._take_message(data)
        else:
            self._take_print(data, is_error=source == self._stderr)
        return True

    def _take_message(self, data: bytes) -> None:
        try:
            self._messages += self._reader.add(data)
            if self._messages and not self._is_begun:
                self._number, self._is_begun = read_json(self._messages.pop(0))["begun"], True
        except ValueError:
            self._stop("output")

    def _take_print(self, data: bytes, *, is_error: bool) -> None:
        if is_error:
            self._err = (self._err + data)[-_ERRORS:]
        else:
            self._out += data[: max(0, self._limits.output - len(self._out))]
        self._printed += len(data)
        if self._printed > self._limits.output:
            self._stop("output")

    def _drain(self) -> None:
        """What was written before the end, though others may hold the pipes' other ends, too."""
        for source in (self._stdout, self._stderr):
            os.set_blocking(source, False)
        for each in (self._stdout, self._stderr, self._channel):
            while self._reached is None and self._read(each):
                pass

    def _stop(self, limit: Ended) -> None:
        if self._reached is None:
            self._reached = limit
            self._kill()
            for source in (self._stdout, self._stderr, self._channel):
                if source in self._selector.get_map():
                    self._selector.unregister(source)


def waited_of(process: int) -> float:
    """Seconds in which a process could have run, and others had the processors; 0 where the kernel
    does not say. It is of the first thread, since others of its own may hold that up, too."""
    with suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()
        return int(words[1]) / 1e9
    return 0.0
