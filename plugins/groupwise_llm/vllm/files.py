"""Files: weights go to servers as safetensors files in a shared folder, by default in memory."""

from collections.abc import Iterator
from pathlib import Path

from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from groupwise.kit import processes
from groupwise.kit.errors import UserError, first_line
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.home import MEMORY, Home, in_turn
from groupwise_llm.vllm.server import Server
from groupwise_llm.vllm.transfer import Transfer, norm

FILE_BYTES = 2**31
"""Size of a file: weights are collected in memory up to this size, then written."""


class Files(Transfer):
    """The current weights stay in the folder, so that a server that restarts can load them again.

    parent: where the folder is created; None for /dev/shm.
    """

    def __init__(self, fleet: Fleet, parent: str | None) -> None:
        super().__init__(fleet)
        self._own: Home | None = None
        self.home = processes.first(lambda: self._made(parent))

    def _made(self, parent: str | None) -> Path:
        try:
            self._own = Home(parent)
        except OSError as error:
            raise UserError(
                f"sampler.folder: cannot write to {parent or MEMORY}: {first_line(error)}"
            ) from error
        return self._own.folder

    def send(self, policy: LanguageModel, tag: str) -> None:
        processes.first(self._clear)
        self.norms = _write(policy.weights(), self.home)
        processes.first(lambda: self.fleet.each(lambda server: self._load(server, tag)))

    def resend(self, server: Server, tag: str) -> None:
        with in_turn(self.home / "lock"):
            if server.tag != tag:  # else another process was faster
                self._load(server, tag)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _load(self, server: Server, tag: str) -> None:
        with server.exchange(tag):
            server.load(str(self.home))

    def _clear(self) -> None:
        for file in self.home.glob("*.safetensors"):
            file.unlink()


def _write(weights: Iterator[tuple[str, Tensor]], home: Path) -> dict[str, float]:
    """Write the weights on rank 0; the other ranks iterate too, as gathering is a collective.

    Returns the tensors' norms. Raises UserError where writing fails, but only after the last
    weight: until then the other ranks gather.
    """
    part: dict[str, Tensor] = {}
    norms: dict[str, float] = {}
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
            norms[name] = float(norm(tensor))
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
    return norms
