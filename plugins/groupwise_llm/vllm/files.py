"""Files: weights go to servers as safetensors files in a shared folder, by default in memory."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from accelerate import PartialState
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from groupwise import processes
from groupwise.errors import UserError, first_line
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.server import Server
from groupwise_llm.vllm.transfer import UNFINISHED, Transfer, Weights

MEMORY = Path("/dev/shm")
PREFIX = f"groupwise-{socket.gethostname()}-"
FILE_BYTES = 2**31
"""Size of a file: weights are collected in memory up to this size, then written."""


class Files(Transfer):
    """The current weights stay in the folder, so that a server that restarts can load them again.

    parent: where the folder is created; None for /dev/shm.
    """

    def __init__(self, fleet: Fleet, parent: str | None) -> None:
        super().__init__(fleet)
        if parent is None:
            parent = str(MEMORY if MEMORY.is_dir() else tempfile.gettempdir())
        self.home = Path(processes.first(lambda: _home(parent)))

    def send(self, weights: Weights, tag: str) -> None:
        processes.first(self._clear)
        _write(weights(), self.home)
        processes.first(lambda: self.fleet.each(lambda server: _load(server, self.home, tag)))

    def resend(self, server: Server, tag: str) -> None:
        with FileLock(self.home / "lock"):
            if server.tag != tag:  # else another process was faster
                _load(server, self.home, tag)

    def close(self) -> None:
        if PartialState().is_main_process:
            shutil.rmtree(self.home, ignore_errors=True)

    def _clear(self) -> None:
        for file in self.home.glob("*.safetensors"):
            file.unlink()


def _home(parent: str) -> str:
    """Create this process's folder; folders of killed processes are removed."""
    try:
        for folder in Path(parent).glob(f"{PREFIX}*"):
            process = folder.name.removeprefix(PREFIX).partition("-")[0]
            if process.isdigit() and not _lives(int(process)):
                shutil.rmtree(folder, ignore_errors=True)
        return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
    except OSError as error:
        raise UserError(f"sampler.folder: cannot write to {parent}: {first_line(error)}") from error


def _lives(process: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True


def _write(weights: Iterator[tuple[str, Tensor]], home: Path) -> None:
    """Write the weights on rank 0; the other ranks iterate too, as gathering is a collective.

    Raises UserError where writing fails, but only after the last weight: until then the other ranks
    gather.
    """
    part: dict[str, Tensor] = {}
    size = number = 0
    problem: Exception | None = None

    def flush() -> None:
        nonlocal part, size, number, problem
        try:
            if part and problem is None:
                save_file(part, home / f"model-{number:05}.safetensors")
        except (OSError, SafetensorError) as error:
            problem = error
        part, size, number = {}, 0, number + 1

    first = PartialState().is_main_process
    for name, tensor in weights:
        if first:
            part[name] = tensor.to("cpu").contiguous()
            size += tensor.nbytes
            if size >= FILE_BYTES:
                flush()
    flush()

    def raise_problem() -> None:
        if problem is not None:
            raise UserError(
                f"sampler.folder: the weights cannot be written to {home}: {first_line(problem)}; "
                f"set it to a folder with room for all of them"
            )

    processes.first(raise_problem)


def _load(server: Server, home: Path, tag: str) -> None:
    server.set_tag(UNFINISHED)
    server.load(str(home))
    server.set_tag(tag)
