"""The context that turns cuDNN's attention off."""

import pytest
import torch

from groupwise.kit.attention import without_cudnn


def test_the_setting_of_cudnn_is_restored_even_after_an_error():
    for before in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(before)
        with pytest.raises(KeyError), without_cudnn():  # noqa: PT012
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            raise KeyError
        assert torch.backends.cuda.cudnn_sdp_enabled() == before
    torch.backends.cuda.enable_cudnn_sdp(True)
