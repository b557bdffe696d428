"""Which of torch's kernels for attention may be used."""

import pytest
import torch

from groupwise.attention import without_cudnn


def test_what_was_allowed_is_allowed_again_after_an_error_too():
    for before in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(before)
        with pytest.raises(KeyError), without_cudnn():  # noqa: PT012
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            raise KeyError
        assert torch.backends.cuda.cudnn_sdp_enabled() == before
    torch.backends.cuda.enable_cudnn_sdp(True)
