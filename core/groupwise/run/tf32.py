"""TF32: matrix products of float32 by the quicker units that GPUs have for them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from groupwise.sampler import products_are_exact


@contextmanager
def products_in_tf32(wanted: bool, device: torch.device) -> Iterator[None]:
    """The context in which torch takes them in TF32, the whole process's; elsewhere than on a GPU
    it changes nothing."""
    if not wanted or device.type != "cuda" or not products_are_exact():
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
