"""Attention: by which of torch's kernels models compute it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn() -> Iterator[None]:
    """The context in which torch's attention is not cuDNN's, which it prefers in half precision on
    an H100 and its successors; the whole process's.

    cuDNN plans for every shape that it meets, which takes tens of milliseconds, and completions
    that grow and end have ever new shapes. Its backward pass has been seen to give NaN for finite
    inputs (https://github.com/pytorch/pytorch/issues/196678). A pass that is computed again in the
    backward pass must be so in this context, too: another kernel saves other tensors.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
