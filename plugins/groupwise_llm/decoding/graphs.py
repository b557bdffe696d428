"""Graphs: the kernels of one token, captured as a CUDA graph and launched together.

The host launches a token's kernels one by one, some 40 for each layer, which takes longer than a
GPU computes for most models. A graph is launched at once. It repeats the kernels with the arguments
that they were captured with: the same addresses, and the same numbers where the host passed them.
So whatever differs from token to token is in tensors on the device, which are changed in place
(`Slots`, `Fixed`), and a graph is forgotten when any of them is replaced. The model's weights stay
in place within a batch, and a graph lives no longer than its batch.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

WORTH = 4
"""Tokens that must be left for a capture: it takes the time of two or three that are not captured.
"""


def pays(tokens: int) -> bool:
    """Whether capturing pays where so many tokens may be drawn, of which the first comes from the
    prompt's pass, and the second is not captured."""
    return tokens - 2 >= WORTH


class Graph:
    """Runs a token: first without a graph, then captured and replayed.

    Kernels are loaded, and libraries choose among theirs, when they first run with new shapes. This
    may wait for the device, which must not happen while capturing.

    strict: raise where the token makes the host wait, before it is captured. An error while
    capturing would leave torch's allocator in disorder, in torch before 2.12.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.forget()

    def forget(self) -> None:
        """Capture anew, since a tensor that the token reads or writes has been replaced."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran = False

    def run(self, token: Callable[[], None], left: int) -> None:
        """Run the token. left: how many may follow, with this one."""
        if self._graph is None and (not self._ran or left < WORTH):
            with _refusing_waits() if self.strict else nullcontext():
                token()
            self._ran = True
            return
        if self._graph is None:
            self._graph = _captured(token)
        self._graph.replay()


def _captured(token: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of the token, which is not computed meanwhile.

    Other threads, those of rewards, may use the device at the same time, hence "thread_local".
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        token()
    return graph


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """The context in which torch raises RuntimeError where the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
