"""forward(): the shared prompt against the plain path, and both against transformers."""

import pytest
import torch
from transformers import CONFIG_MAPPING

from groupwise.rollouts import Rollouts
from groupwise_llm.model import causal
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics

SHARING = ["qwen2", "llama", "gpt2", "gpt_neox", "gemma2", "gemma3"]


def hand_made(vocabulary=200):
    """Three groups of two: prompts of different length, completions from 1 token to 9."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda n: torch.randint(2, vocabulary, (n,), generator=generator)  # noqa: E731
    prompts = [draw(n) for n in (7, 2, 11)]
    lengths = torch.tensor([9, 1, 4, 6, 2, 9])
    ids = torch.stack([draw(9) for _ in lengths])
    mask = torch.arange(9) < lengths.unsqueeze(1)
    return Rollouts(
        prompts=[{}] * 6,
        completions=[""] * 6,
        groups=torch.tensor([4, 4, 9, 9, 2, 2]),
        mask=mask,
        truncated=torch.zeros(6, dtype=torch.bool),
        trajectory={
            "prompt_ids": [prompts[g] for g in (0, 0, 1, 1, 2, 2)],
            "completion_ids": ids.masked_fill(~mask, 0),
            "attention": mask,
        },
    )


def gradient(policy):
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]).double()


def answer(policy, rollouts):
    """(log-probs, gradient of a loss that treats every decision differently)."""
    policy.zero_grad(set_to_none=True)
    answered = policy(rollouts)
    slopes = torch.linspace(-1, 1, rollouts.mask.numel()).view(rollouts.mask.shape)
    (slopes * (answered.log_probs + 0.1 * answered.entropy) * rollouts.mask).sum().backward()
    return answered.log_probs.detach(), gradient(policy)


def close(ours, theirs):
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


@pytest.mark.parametrize("architecture", SHARING)
def test_a_shared_prompt_changes_neither_log_probs_nor_gradients(make, plain, allow, architecture):
    policy, rollouts = make(architecture), hand_made()
    assert policy.ability.shared_training, policy.notes
    shared, shared_gradient = answer(policy, rollouts)
    allow(policy, shared_training=False)
    alone, alone_gradient = answer(policy, rollouts)
    torch.testing.assert_close(shared[rollouts.mask], alone[rollouts.mask], rtol=5e-6, atol=5e-6)
    close(shared_gradient, alone_gradient)
    with torch.no_grad():
        torch.testing.assert_close(
            shared * rollouts.mask, plain(policy, rollouts), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma2"])
@pytest.mark.parametrize("share", [True, False])
def test_micro_batches_do_not_change_the_gradient(make, architecture, share):
    policy, rollouts = make(architecture, share_prompt=share, temperature=0.7), hand_made()
    slopes = torch.linspace(-1, 1, rollouts.mask.numel()).view(rollouts.mask.shape)
    answers = []
    for budget in (1, 12, 20, 10_000):
        policy.zero_grad(set_to_none=True)
        seen = []
        for rows, decisions in policy.microbatches(rollouts, budget, cut_decisions=True):
            piece = rollouts.select(rows)
            log_probs = policy(piece, decisions).log_probs
            (slopes[rows, decisions] * log_probs * piece.mask[:, decisions]).sum().backward()
            seen += rows.tolist()
        assert sorted(seen) == list(range(6))
        answers.append(gradient(policy))
    for other in answers[:-1]:
        close(other, answers[-1])


def test_a_slice_of_the_decisions_is_that_slice_of_all(make):
    policy, rollouts = make(), hand_made()
    whole, part = policy(rollouts), policy(rollouts, slice(2, 5))
    inside = rollouts.mask[:, 2:5]
    torch.testing.assert_close(part.log_probs[inside], whole.log_probs[:, 2:5][inside])
    assert part.log_probs.shape == part.entropy.shape == (6, 3)


def test_padding_is_finite_and_without_gradient(make):
    policy, rollouts = make(), hand_made()
    log_probs = policy(rollouts).log_probs
    assert not log_probs[~rollouts.mask].any()


def test_an_end_token_that_is_also_the_pad_token_is_a_decision(make, plain):
    policy = make(model={"pad": "<|end|>", "pad_token_id": 0})
    assert policy.tokenizer.pad_token_id in policy.ends
    rollouts = hand_made()
    ids = rollouts.trajectory["completion_ids"].clone()
    last = rollouts.lengths - 1
    ids[torch.arange(6), last] = policy.tokenizer.eos_token_id
    rollouts = Rollouts(
        **{**vars(rollouts), "trajectory": {**rollouts.trajectory, "completion_ids": ids}}
    )
    ours = policy(rollouts).log_probs
    assert (ours[torch.arange(6), last] < 0).all()
    torch.testing.assert_close(ours, plain(policy, rollouts), rtol=1e-5, atol=1e-5)


def test_only_rollouts_without_decisions(make):
    policy, rollouts = make(), hand_made()
    silent = Rollouts(**{**vars(rollouts), "mask": torch.zeros_like(rollouts.mask)})
    for piece in (silent, silent.select([2, 3])):  # the second has no places at all
        log_probs = policy(piece).log_probs
        log_probs.sum().backward()
        assert log_probs.shape == piece.mask.shape
        assert not log_probs.any()


def test_softcapped_logits_take_the_models_own_head(make):
    policy = make("gemma2")
    assert any("own logits" in note for note in policy.notes)
    assert not policy.ability.numerics.plain_head
    assert make("gemma3").notes == []


def test_own_heads_make_logits_of_completions_only(make, monkeypatch):
    policy, rollouts, kept = make("gemma2", share_prompt=False), hand_made(), []
    monkeypatch.setattr(
        policy.model.lm_head, "forward", lambda hidden: kept.append(hidden.shape) or hidden
    )
    with pytest.raises(IndexError):  # what is kept instead of logits are hidden states
        policy(rollouts)
    # The longest row has 11 + 9 tokens, of which the last predicts nothing; the shortest prompt 2.
    assert kept[0][:2] == (6, 11 + 9 - 1 - (2 - 1))


def test_large_logits_in_bf16_still_take_the_plain_head(make):
    policy = make("llama", model={"initializer_range": 1.0}, precision="bf16")
    assert policy.notes == []
    assert policy.ability.numerics == Numerics(precision="bf16", plain_head=True)


@pytest.mark.parametrize("error", [ValueError("no cache here"), None])
def test_a_cache_that_refuses_or_disagrees_is_told_and_not_used(make, plain, monkeypatch, error):
    class Bad(causal.MaskedCache):
        def reorder_cache(self, rows):
            if error:
                raise error
            super().reorder_cache(rows.flip(0))

    monkeypatch.setattr(causal, "MaskedCache", Bad)
    policy = make()
    training, sampling = policy.notes
    assert training.startswith("prompts are not shared in training: ")
    assert ("fails (no cache here)" if error else "log-probs differ by") in training
    # Rows that have ended leave the batch by the same method.
    assert sampling.startswith("completions are sampled without a cache, which is slow: ")
    assert not policy.ability.decoding.cached
    rollouts = hand_made()
    torch.testing.assert_close(
        policy(rollouts).log_probs, plain(policy, rollouts), rtol=1e-5, atol=1e-5
    )
    sampled = policy.sample([{"prompt": "ab"}, {"prompt": "abc"}], group_size=2, seeds=range(4))
    torch.testing.assert_close(
        policy(sampled).log_probs, sampled.sampler_log_probs, rtol=1e-4, atol=1e-4
    )


def test_a_head_that_cannot_be_had_apart_is_left_to_the_model(make, plain, monkeypatch):
    original = CausalModel._layers

    def layers(self, ids, *, plain, **options):
        if plain:
            raise AttributeError("no such part")
        return original(self, ids, plain=plain, **options)

    monkeypatch.setattr(CausalModel, "_layers", layers)
    policy = make()
    assert "own logits" in policy.notes[0]
    rollouts = hand_made()
    torch.testing.assert_close(
        policy(rollouts).log_probs, plain(policy, rollouts), rtol=1e-5, atol=1e-5
    )


SETTINGS = {"full": {}, "adapters": {"lora": {"rank": 4}}}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma3"])
def test_gradient_checkpointing_keeps_the_shared_prompt(make, monkeypatch, architecture, settings):
    rollouts = hand_made()
    expected, expected_gradient = answer(make(architecture, **settings), rollouts)
    policy = make(architecture, gradient_checkpointing=True, **settings)
    assert policy.ability.shared_training
    assert policy.notes == []
    tokens = []
    embedding = policy.causal.causal.get_input_embeddings()
    embedding.register_forward_hook(lambda _, inputs, __: tokens.append(inputs[0].numel()))
    ours, ours_gradient = answer(policy, rollouts)
    # Each prompt once, then completions but for their last tokens.
    prompts = {tuple(ids.tolist()) for ids in rollouts.trajectory["prompt_ids"]}
    width = max(map(len, prompts))
    assert tokens == [len(prompts) * width, 6 * (rollouts.mask.shape[1] - 1)]
    mask = rollouts.mask
    torch.testing.assert_close(ours[mask], expected[mask], rtol=5e-6, atol=5e-6)
    close(ours_gradient, expected_gradient)


def test_gradient_checkpointing_says_where_a_prompt_cannot_be_shared(make_of):
    names = ["linear_attention", "full_attention"]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": names}
    ends = {"vocab_size": 258, "eos_token_id": 0, "pad_token_id": None}
    linear = {f"linear_num_{kind}_heads": 2 for kind in ("value", "key")}
    linear |= {f"linear_{kind}_head_dim": 8 for kind in ("value", "key")}
    config = CONFIG_MAPPING["qwen3_5_text"](**sizes, **heads, **ends, **linear)
    policy = make_of(config, gradient_checkpointing=True)
    (note,) = policy.notes
    assert "with gradient checkpointing only a cache of keys and values" in note
    rollouts = hand_made()
    with policy.causal.checkpoints.off():
        expected, gradient = answer(policy, rollouts)
    ours, recomputed = answer(policy, rollouts)
    assert torch.equal(ours, expected)
    close(recomputed, gradient)


def test_checkpointing_recomputes_and_dropout_stays_off(make):
    policy = make(
        "gpt2", model={"resid_pdrop": 0.5, "attn_pdrop": 0.5}, gradient_checkpointing=True
    )
    first, second = policy(hand_made()).log_probs, policy(hand_made()).log_probs
    assert torch.equal(first, second)
    runs = []
    policy.model.transformer.h[0].ln_1.register_forward_hook(lambda *_: runs.append(1))
    policy(hand_made()).log_probs.sum().backward()
    assert len(runs) == 4  # prompts, what follows them, and both again
    with policy.causal.checkpoints.off():
        policy(hand_made()).log_probs.sum().backward()
    assert len(runs) == 6
