"""Reach: parameters that no gradient reaches, which processes that train together would wait for.

Each process must have a gradient for every trained parameter. A model may have parts that its
answer does not depend on (what a last block makes of the text); theirs is zero.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Reach:
    """Gives all trained parameters a gradient in a run of processes; else does nothing."""

    def __init__(self) -> None:
        self._idle: list[nn.Parameter] | None = None

    def __call__(self, answer: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The answer, with those parameters that it does not depend on times 0."""
        if not answer.requires_grad or not _distributed():
            return answer
        if self._idle is None:
            self._idle = unreached(answer, parameters)
        for parameter in self._idle:
            answer = answer + 0.0 * parameter.flatten()[0]
        return answer


def unreached(answer: Tensor, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The trained parameters that are not in the answer's graph."""
    waiting, seen, reached = [answer.grad_fn], set(), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        reached.add(id(getattr(node, "variable", None)))
        waiting += [following for following, _ in node.next_functions]
    return [p for p in parameters if p.requires_grad and id(p) not in reached]


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
