"""Transfer: how weights are sent to servers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.server import Server

Weights = Callable[[], Iterator[tuple[str, Tensor]]]
"""Each call iterates over all weights from the beginning; a collective, so on every rank."""


class Transfer(ABC):
    """Sends weights to servers.

    prefix: of the tags of weights that are sent so; norms: by name, those of the tensors that were
    sent last, in the servers' dtype: other tensors have other ones. Known on the first process.
    """

    prefix: ClassVar[str] = ""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.norms: dict[str, float] = {}

    @abstractmethod
    def send(self, policy: LanguageModel, tag: str) -> None:
        """Have all servers load the policy's weights, tagged `tag`. Called on every rank."""

    def model(self, tag: str) -> str | None:
        """The model that requests name, to be answered with these weights; None for the server's
        only one."""
        return None

    @abstractmethod
    def resend(self, server: Server, tag: str) -> None:
        """Have one server load the last weights again. Called on any rank. Raises UserError where
        that is not possible."""

    def keep_only(self, tags: Collection[str]) -> None:  # noqa: B027
        """No request uses, or will use, other weights than these. Called on every rank."""

    def close(self) -> None:  # noqa: B027
        """Called once, after the last transfer."""


def norm(tensor: Tensor) -> Tensor:
    """In float64, where one changed weight of billions still changes the sum of squares."""
    return torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)
