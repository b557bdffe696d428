"""Attention: which of torch's kernels models use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn() -> Iterator[None]:
    """A context, for the whole process, in which torch does not use cuDNN's attention kernels.

    torch prefers them in half precision on an H100 and later GPUs. But cuDNN makes a plan for every
    new shape, which takes tens of milliseconds, and sampling meets a new shape at every token. Its
    backward pass can also give NaN for finite inputs
    (https://github.com/pytorch/pytorch/issues/196678). With activation checkpointing the recomputed
    forward pass must be in this context, too, since another kernel saves other tensors.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
