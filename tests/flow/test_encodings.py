"""Encodings: prompts of any length in any company are one and the same to the model."""

import pytest
import torch

from groupwise.errors import UserError
from groupwise_flow.encodings import Encodings
from groupwise_flow.sd3 import SD3Adapter

CPU = torch.device("cpu")


def letters(prompts, *, width=None, masked=True):
    """What an encoder that pads to the longest of a batch makes of prompts, a letter a token."""
    width = width or max(map(len, prompts))
    ids = torch.tensor([[*map(ord, prompt)] + [1] * (width - len(prompt)) for prompt in prompts])
    encoded = {"embeds": ids.unsqueeze(2) * torch.ones(3), "pooled": ids[:, :1].float()}
    return encoded | ({"mask": ids != 1} if masked else {})


def encodings(encode):
    return Encodings(encode, most=9, width=6, name="Letters")


def test_conditions_with_a_mask_are_filled_up_to_one_width():
    made = encodings(letters)
    alone = made(["ab"], CPU)
    together = made(["ab", "abcde"], CPU)
    assert together["embeds"].shape == (2, 6, 3)
    assert together["mask"].dtype == torch.bool
    assert together["mask"].sum(dim=1).tolist() == [2, 5]
    assert together["pooled"].shape == (2, 1)
    for name, value in alone.items():
        assert torch.equal(value[0], together[name][0])
    assert (together["embeds"][~together["mask"]] == 0).all()


def test_more_tokens_than_are_allowed():
    with pytest.raises(UserError, match=r"prompt_tokens: Letters made 7 tokens .* set it to 7"):
        encodings(letters)(["abcdefg"], CPU)


def test_widths_that_differ_without_a_mask_are_refused():
    made = encodings(lambda prompts: letters(prompts, masked=False))
    made(["ab", "cd"], CPU)
    with pytest.raises(UserError, match=r"Letters.encode gave 'embeds' \[2, 3\] .* \[3, 3\]"):
        made(["abc"], CPU)


class Growing(StableDiffusion3):
    """An adapter whose encoder pads to the longest prompt of a batch, and says so by a mask."""

    def encode(self, prompts):
        encoded = super().encode(prompts)
        longest = max(len(self.pipeline.tokenizer_3(prompt).input_ids) for prompt in prompts)
        mask = torch.ones(len(prompts), longest, dtype=torch.bool)
        return {**encoded, "embeds": encoded["embeds"][:, :longest], "mask": mask}


class Bare(Growing):
    def encode(self, prompts):
        return {k: v for k, v in super().encode(prompts).items() if k != "mask"}


def test_an_adapter_that_pads_to_the_longest(lab):
    policy = lab.policy(adapter=Growing, guidance=2.0)
    prompts = [{"prompt": "a cat"}, {"prompt": "a b c d e f"}]
    both = policy.sample(prompts, group_size=1, seeds=[1, 2])
    alone = lab.policy(adapter=Growing, guidance=2.0).sample(prompts[:1], group_size=1, seeds=[1])
    torch.testing.assert_close(
        alone.sampler_log_probs[0], both.sampler_log_probs[0], rtol=0, atol=1e-5
    )
    bare = lab.policy(adapter=Bare)
    bare.sample(prompts[:1], group_size=1, seeds=[1])
    with pytest.raises(UserError, match=r"Bare.encode gave 'embeds' .* `policy.prompt_tokens`"):
        bare.sample(prompts, group_size=1, seeds=[1, 2])
