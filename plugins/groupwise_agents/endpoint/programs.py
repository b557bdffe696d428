"""Programs: agents as functions in threads of their own, and as commands."""

import asyncio
import inspect
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Any

from groupwise.kit import descendants, foreign_json
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise_agents.endpoint.address import Address
from groupwise_agents.threads import in_thread

TAIL = 64 * 1024
"""Bytes that are read of what a command prints: its last ones."""


@dataclass(frozen=True)
class Function:
    """A sync or async function, called in a thread of its own.

    An async one has an event loop of its own there, so that one that blocks holds up no other
    episode and not the endpoint that it waits for. It is cancelled if the episode ends before it; a
    sync one cannot be, and ends with its next request.
    """

    function: Callable[..., Any]

    async def __call__(self, address: Address, row: Row) -> Any:
        running = _Running(partial(self.function, **self._arguments(address, row)))
        try:
            return await in_thread(running, "agent")
        finally:
            running.cancel()

    def _arguments(self, address: Address, row: Row) -> Mapping[str, Any]:
        """Those that the function names, of the address, the row, and the row's columns."""
        known = {**row, "row": row, **asdict(address)}
        parameters = inspect.signature(self.function).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return known
        named = [each for each in parameters if each.kind is not each.VAR_POSITIONAL]
        for each in named:
            if each.name not in known and each.default is each.empty:
                raise UserError(
                    f"environment.run: the agent has an argument {each.name!r}, and can be given "
                    f"{', '.join(known)}"
                )
        return {each.name: known[each.name] for each in named if each.name in known}


@dataclass
class _Running:
    """A call of a function, in its thread; an async one can be cancelled from another thread."""

    function: Callable[[], Any]
    task: "asyncio.Task[Any] | None" = field(default=None, init=False)

    def __call__(self) -> Any:
        returned = self.function()
        return asyncio.run(self._awaited(returned)) if inspect.isawaitable(returned) else returned

    async def _awaited(self, returned: Any) -> Any:
        self.task = asyncio.current_task()
        return await returned

    def cancel(self) -> None:
        if self.task is not None:
            with suppress(RuntimeError):  # its loop is closed: it has ended
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)


@dataclass(frozen=True)
class Command:
    """A program with its arguments, in a process of its own, which is killed at the end with all
    processes that it has started (`groupwise.kit.descendants`).

    It reads the row as JSON from its standard input, and the address from OPENAI_BASE_URL,
    OPENAI_API_KEY and OPENAI_MODEL. The last line that it prints may be a JSON object with columns,
    or a number, its reward.
    """

    command: Sequence[str]

    async def __call__(self, address: Address, row: Row) -> Any:
        own = {f"OPENAI_{name.upper()}": value for name, value in asdict(address).items()}
        # Files, since a pipe stays open as long as any process that the command leaves running.
        with TemporaryFile() as input_, TemporaryFile() as output, TemporaryFile() as errors:
            input_.write(json.dumps(row, default=str).encode())
            input_.seek(0)
            code = await self._exit_code(own, input_, output, errors)
            if code:
                text = (_tail(errors).strip() or _tail(output).strip())[-500:]
                raise RuntimeError(f"{self.command[0]} exited with {code}: {text}")
            return _printed(_tail(output))

    async def _exit_code(
        self, own: Mapping[str, str], input_: IO[bytes], output: IO[bytes], errors: IO[bytes]
    ) -> int:
        """Run it with these variables and files, and kill what it leaves running."""
        if shutil.which(self.command[0]) is None:
            raise UserError(f"environment.command: there is no program {self.command[0]!r}")
        started = (sys.executable, "-I", "-S", descendants.__file__)
        theirs, ours = os.pipe()
        process = None
        try:
            with os.fdopen(ours, "wb"):  # its end ends the command, also if this process is killed
                with os.fdopen(theirs, "rb"):
                    process = await asyncio.create_subprocess_exec(
                        *(*started, str(theirs), *self.command),
                        pass_fds=[theirs],
                        stdin=input_,
                        stdout=output,
                        stderr=errors,
                        env=os.environ | own,
                        start_new_session=True,
                    )
                return await process.wait()
        finally:
            if process is not None:
                await process.wait()
                with suppress(ProcessLookupError):  # where descendants are not known
                    os.killpg(process.pid, signal.SIGKILL)


def _tail(file: IO[bytes]) -> str:
    """The end of what a file has."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    return file.read().decode(errors="replace")


def _printed(output: str) -> Any:
    """The columns or the reward in the last line; None without any."""
    with suppress(ValueError):
        value = foreign_json.read((output.strip().splitlines() or [""])[-1])
        if isinstance(value, dict | int | float):
            return value
    return None
