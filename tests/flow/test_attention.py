"""Which kernels compute attention, and how many pictures are decoded together."""

import pytest
import torch

from groupwise_flow.passes.guidance import Pictures


def drawn(latents):
    return Pictures([None] * len(latents), latents, torch.zeros(len(latents), dtype=torch.bool))


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_cudnn_attention_is_off_within_forward_and_backward_passes_only(
    lab, monkeypatch, architecture, recomputed
):
    policy = lab.policy(architecture, steps=3, gradient_checkpointing=recomputed)
    policy.guided.conditions(lab.rows)  # text encoders keep cuDNN: they have no gradient
    allowed, attention = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*inputs, **options):
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attention(*inputs, **options)

    monkeypatch.setattr(policy.guided, "completions", lambda latents, **_: drawn(latents))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    current = policy(rollouts)
    forward_count = len(allowed)
    current.log_probs.sum().backward()
    assert (len(allowed) > forward_count) == recomputed
    assert set(allowed) == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_large_pictures_are_decoded_in_smaller_batches(lab, monkeypatch, rounding):
    policy = lab.policy(steps=3)
    decode, sizes = policy.adapter.completions, []
    latents = torch.randn(5, *policy.adapter.latent_shape)
    together = policy.guided.completions(latents).images
    monkeypatch.setattr("groupwise_flow.passes.guidance.DECODED", 2 * 16 * 16)
    monkeypatch.setattr(
        policy.adapter, "completions", lambda some: sizes.append(len(some)) or decode(some)
    )
    in_batches = policy.guided.completions(latents).images
    assert sizes == [2, 2, 1]
    rounding.same(lambda: policy.guided.completions(latents).images, in_batches, together)
