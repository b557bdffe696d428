"""Encoded prompts: one width for all lengths, independent of the batch, kept for the next call."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from groupwise.kit.errors import UserError
from groupwise_flow.adapter import UNCONDITIONAL
from groupwise_flow.adapters.sd3 import SD3Adapter
from groupwise_flow.prompts.encodings import Encodings, identity

CPU = torch.device("cpu")


def letters(rows):
    """An encoder that pads to the longest prompt of the batch; a letter is a token."""
    prompts = [row["prompt"] for row in rows]
    width = max(map(len, prompts))
    ids = torch.tensor([[*map(ord, prompt)] + [1] * (width - len(prompt)) for prompt in prompts])
    encoded = {"embeds": ids.unsqueeze(2) * torch.ones(3), "pooled": ids[:, :1].float()}
    # As Qwen-Image's pipeline, which returns no mask where nothing is masked.
    return {**encoded, "mask": None if (ids != 1).all() else (ids != 1).long()}


def encodings(encode, *, most=9, by_token=("embeds",), reads=("prompt",)):
    def columns(row):
        return {name: row[name] for name in reads}

    adapter = SimpleNamespace(encode=encode, columns=columns, by_token=by_token, tokens=6)
    return Encodings(adapter, most=most, check=lambda rows: None, on=lambda device: nullcontext())


def rows_of(*prompts):
    return [{"prompt": prompt, "answer": 3} for prompt in prompts]


def test_conditions_by_token_are_padded_to_one_width():
    alone = encodings(letters)(rows_of("ab"), CPU)
    together = encodings(letters)(rows_of("ab", "abcde"), CPU)
    assert together["embeds"].shape == (2, 6, 3)
    assert together["mask"].dtype == torch.bool
    assert together["mask"].sum(dim=1).tolist() == [2, 5]
    assert together["pooled"].shape == (2, 1)
    for name, value in alone.items():
        assert torch.equal(value[0], together[name][0])
    assert (together["embeds"][~together["mask"]] == 0).all()
    # Lengths are on the host, and follow their rows.
    assert (alone.lengths, together.lengths) == ((2,), (2, 5))
    rows = torch.tensor([1, 0, 1])
    assert together.select(rows, rows.tolist()).lengths == (5, 2, 5)
    assert encodings(letters, by_token=())(rows_of("ab"), CPU).lengths == ()


def test_more_tokens_than_prompt_tokens_are_refused():
    with pytest.raises(UserError, match=r"prompt_tokens: SimpleNamespace made 7 .* set it to 7"):
        encodings(letters)(rows_of("abcdefg"), CPU)


def test_widths_that_differ_and_are_not_by_token_are_refused():
    encoder = encodings(lambda rows: letters(rows) | {"mask": None}, by_token=())
    encoder(rows_of("ab", "cd"), CPU)
    with pytest.raises(UserError, match=r"encode gave 'embeds' \[2, 3\] .* \[3, 3\]"):
        encoder(rows_of("abc"), CPU)


def test_conditions_that_only_some_prompts_have_are_refused():
    encoder = encodings(
        lambda rows: {"embeds": torch.ones(1, 6), rows[0]["prompt"]: torch.ones(1)}, by_token=()
    )
    encoder(rows_of("ab"), CPU)
    with pytest.raises(UserError, match="encode gave embeds, ab for some prompts and embeds, cd"):
        encoder(rows_of("cd"), CPU)


def picture(shade):
    return Image.new("RGB", (4, 4), (shade, 0, 0))


def test_conditions_are_kept_by_the_columns_that_are_encoded():
    encoded = []

    def encode(rows):
        encoded.extend(rows)
        shades = [float(row["picture"].getpixel((0, 0))[0]) for row in rows]
        return {"shade": torch.tensor(shades).unsqueeze(1)}

    encoder = encodings(encode, reads=("prompt", "picture"), by_token=())
    one, other = ({"prompt": "make it red", "picture": picture(shade)} for shade in (1, 2))
    again = {"prompt": "make it red", "picture": picture(1), "answer": "anything"}
    conditions = encoder([one, other, again], CPU)["shade"]
    assert conditions.flatten().tolist() == [1, 2, 1]
    assert len(encoded) == 2
    assert [sorted(row) for row in encoded] == [["picture", "prompt"]] * 2


def test_encoding_a_column_that_reads_does_not_name_is_refused():
    encoder = encodings(lambda rows: {"picture": rows[0]["picture"]})
    with pytest.raises(UserError, match="reads the column 'picture' and its `reads` names prompt"):
        encoder([{"prompt": "a cat", "picture": picture(1)}], CPU)
    encoder = encodings(letters, reads=("prompt", "picture"))
    with pytest.raises(UserError, match="encodes the column 'picture', which a row lacks"):
        encoder(rows_of("a cat"), CPU)


def test_identity_is_the_same_for_equal_content_only():
    values = [
        "a", b"a", 1, 1.5, None, ["a"], ["a", "b"], {"a": 1}, {"a": 2},
        picture(1), picture(2), picture(1).resize((8, 2)), picture(1).convert("L"),
        torch.ones(2), torch.ones(2, 1), torch.ones(2, dtype=torch.bfloat16), np.ones(2),
    ]  # fmt: skip
    keys = [identity(value) for value in values]
    assert len(set(keys)) == len(values)
    assert identity(picture(1)) == identity(picture(1).copy())
    assert identity({"b": [1], "a": picture(2)}) == identity({"a": picture(2), "b": [1]})
    with pytest.raises(UserError, match="found set"):
        identity({1, 2})


def test_only_the_most_recently_used_prompts_are_kept():
    batches = []

    def encode(rows):
        batches.append([row["prompt"] for row in rows])
        return {"length": torch.tensor([[float(len(row["prompt"]))] for row in rows])}

    encoder = encodings(encode, most=2, by_token=())

    def encode_rows(prompts):
        return encoder(rows_of(*prompts), CPU)

    assert encode_rows(["a", "bb", "a", "ccc"])["length"].flatten().tolist() == [1, 2, 1, 3]
    assert len(encoder._kept) == 2
    assert encode_rows(["bb"])["length"].tolist() == [[2]]
    encode_rows(["dddd"])  # ccc is now the least recently used
    assert encode_rows(["bb", "dddd"])["length"].flatten().tolist() == [2, 4]
    encode_rows(["ccc"])
    assert batches == [["a"], ["bb"], ["ccc"], ["dddd"], ["ccc"]]


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
@pytest.mark.slow(after=1)
def test_an_encoding_is_the_same_to_the_bit_whatever_is_encoded_with_it(lab, architecture):
    """In a batch, the last digits of a row depend on how many rows the batch has."""
    prompts = rows_of(*(f"{letter} cat" for letter in "abcdefghijklm"))
    alone = lab.policy(architecture).guided.encodings(prompts[:1], CPU)
    for count in (2, 3, 8, 13):
        together = lab.policy(architecture).guided.encodings(prompts[:count], CPU)
        for name, value in alone.items():
            assert torch.equal(value[0], together[name][0]), (name, count)


class Growing(SD3Adapter):
    """An adapter whose encoder pads to the longest prompt of a batch and returns a mask."""

    by_token = ("embeds",)

    def encode(self, rows):
        encoded = super().encode(rows)
        longest = max(len(self.pipeline.tokenizer_3(row["prompt"]).input_ids) for row in rows)
        mask = torch.ones(len(rows), longest, dtype=torch.bool)
        return {**encoded, "embeds": encoded["embeds"][:, :longest], "mask": mask}


class Bare(Growing):
    by_token = ()

    def encode(self, rows):
        return {k: v for k, v in super().encode(rows).items() if k != "mask"}


def test_an_adapter_that_pads_to_the_longest_prompt(lab, rounding):
    policy = lab.policy(adapter=Growing, guidance=2.0)
    prompts = [{"prompt": "a cat"}, {"prompt": "a b c d e f"}]
    both = policy.sample(prompts, group_size=1, seeds=[1, 2])
    alone = lab.policy(adapter=Growing, guidance=2.0)
    rounding.same(
        lambda: alone.sample(prompts[:1], group_size=1, seeds=[1]).sampler_log_probs,
        both.sampler_log_probs[:1],
    )
    policy_without_mask = lab.policy(adapter=Bare)
    policy_without_mask.sample(prompts[:1], group_size=1, seeds=[1])
    with pytest.raises(UserError, match=r"Bare.encode gave 'embeds' .* name it in `by_token`"):
        policy_without_mask.sample(prompts, group_size=1, seeds=[1, 2])


def test_the_unconditional_row_is_marked_for_the_encoder_and_kept_apart():
    def marked(rows):
        return {"pooled": torch.tensor([[float(UNCONDITIONAL in row)] for row in rows])}

    encoder = encodings(marked, by_token=())
    rows = [{"prompt": ""}, {"prompt": "", UNCONDITIONAL: True}]
    assert encoder(rows, CPU)["pooled"].flatten().tolist() == [0.0, 1.0]
