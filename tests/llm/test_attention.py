"""Which kernels compute attention."""

import pytest
import torch

from groupwise_llm.model import kernels


@pytest.mark.parametrize("recomputed", [False, True])
def test_cudnn_attention_is_off_within_forward_and_backward_passes_only(
    make, rows, monkeypatch, recomputed
):
    allowed = []

    def watch(owner, name):
        attention = getattr(owner, name)

        def watched(*inputs, **options):
            allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
            return attention(*inputs, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(torch.nn.functional, "scaled_dot_product_attention")
    watch(kernels.OnCpu, "forward")
    before = torch.backends.cuda.cudnn_sdp_enabled()
    assert before
    policy = make("qwen2", gradient_checkpointing=recomputed)
    rollouts = policy.sample(rows, group_size=2, seeds=range(2 * len(rows)))
    current = policy(rollouts)
    forward_count = len(allowed)
    current.log_probs.sum().backward()
    assert (len(allowed) > forward_count) == recomputed
    assert set(allowed) == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
