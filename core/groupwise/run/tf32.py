"""TF32: faster matrix products of float32 on GPUs, in lower precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from groupwise.sampler import products_are_exact


@contextmanager
def products_in_tf32(enabled: bool, device: torch.device) -> Iterator[None]:
    """A context, for the whole process, with matrix products in TF32; only on a GPU."""
    if not enabled or device.type != "cuda" or not products_are_exact():
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
