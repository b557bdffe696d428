"""Unused parameters: a zero gradient for those that the output does not depend on.

DDP needs a gradient for every trained parameter, and waits forever otherwise. A model may have
weights without effect on its output, such as those for text tokens in the last block.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class UnusedParameters:
    """Gives all trained parameters a gradient in distributed runs; else does nothing.

    alike: whether every output depends on the same parameters. Not with two transformers, of which
        a pass runs one.
    """

    def __init__(self, *, alike: bool = True) -> None:
        self.alike = alike
        self._unused: list[nn.Parameter] | None = None

    def connect(self, output: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The output plus 0 times each parameter that it does not depend on."""
        if not output.requires_grad or not _distributed():
            return output
        if self._unused is None or not self.alike:
            self._unused = unused(output, parameters)
        for parameter in self._unused:
            output = output + 0.0 * parameter.flatten()[0]
        return output


def unused(output: Tensor, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The trained parameters that are not in the output's graph."""
    pending, visited, reached = [output.grad_fn], set(), set()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        reached.add(id(getattr(node, "variable", None)))
        pending += [following for following, _ in node.next_functions]
    return [p for p in parameters if p.requires_grad and id(p) not in reached]


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
