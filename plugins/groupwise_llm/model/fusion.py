"""Fusion: norms and rotary embeddings as one kernel each, for tokens that are captured.

transformers computes an RMSNorm by some seven kernels and a rotary embedding by ten, which are half
of the kernels of a decoder layer. For one token of each row they take a GPU longer to begin than to
compute, also in a CUDA graph. torch.compile makes one kernel of each, which rounds as they do.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

NORM = "RMSNorm"
"""How the names of transformers' classes end whose forward is compiled."""
ROTARY = "apply_rotary_pos_emb"
"""The function that is compiled in each module of transformers that a layer comes from."""

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as compiled code, made at its first call for any number of rows.

    Intermediate results are rounded where the kernels launched one by one round them.
    """
    options: dict[str, Any] = {"emulate_precision_casts": True}
    made: Callable[..., Any] = torch.compile(
        function, fullgraph=True, dynamic=True, options=options
    )
    return made


class Fusion:
    """Switches the norms and rotary embeddings of a model to compiled code and back."""

    def __init__(self, model: nn.Module, compiler: Compiler = compiled) -> None:
        kinds = sorted(
            {type(module) for module in model.modules()}, key=lambda kind: kind.__qualname__
        )
        files = sorted({kind.__module__ for kind in kinds})
        # Modules of Python by their names, as a policy may be copied, and they cannot be.
        owners: list[tuple[Any, str]] = [
            *((kind, "forward") for kind in kinds if kind.__name__.endswith(NORM)),
            *((file, ROTARY) for file in files if hasattr(sys.modules[file], ROTARY)),
        ]
        originals = [(owner, name, getattr(_owner(owner), name)) for owner, name in owners]
        self._swaps = [(*original, compiler(original[2])) for original in originals]

    @contextmanager
    def on(self) -> Iterator[None]:
        """The context, for the whole process, in which compiled code is called. Other models of
        these classes call it meanwhile, too; it computes the same."""
        for owner, name, _, made in self._swaps:
            setattr(_owner(owner), name, made)
        try:
            with warnings.catch_warnings():
                # torch advises a faster product of matrices when it compiles; here is none.
                warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
                yield
        finally:
            for owner, name, original, _ in self._swaps:
                setattr(_owner(owner), name, original)


def _owner(owner: Any) -> Any:
    return sys.modules[owner] if isinstance(owner, str) else owner
