"""Transfer: a way for weights to get to servers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from groupwise_llm.vllm.server import Server

Weights = Callable[[], Iterator[tuple[str, Tensor]]]
"""Begins anew to iterate over all weights; all processes must iterate alike."""
UNFINISHED = "groupwise: being replaced"
"""What weights are called while they are loaded."""


class Transfer(ABC):
    """Nothing must be in flight while it sends."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers

    @abstractmethod
    def send(self, weights: Weights, tag: str) -> None:
        """Have all servers take these weights, and call them `tag`. Called on all processes."""

    @abstractmethod
    def again(self, server: Server, tag: str) -> None:
        """Have a server take the weights sent last; called on any process. UserError if it cannot
        be."""

    def close(self) -> None:  # noqa: B027
        """Called once, when nothing is sent any more."""

    def each(self, action: Callable[[Server], None]) -> None:
        """Do it with every server, all at once."""
        with ThreadPoolExecutor(len(self.servers)) as threads:
            for done in [threads.submit(action, server) for server in self.servers]:
                done.result()
