"""`forward`: log-probs with and without shared prompts, against transformers."""

from dataclasses import replace

import pytest
import torch
from transformers import CONFIG_MAPPING

from groupwise.rollouts import Rollouts
from groupwise_llm.model import causal
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics

SHARING = ["qwen2", "llama", "gpt2", "gpt_neox", "gemma2", "gemma3"]


def random_rollouts(vocabulary=200):
    """Three groups of two rollouts: prompts of different lengths, completions of 1 to 9 tokens."""
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


def log_probs_and_gradient(policy, rollouts):
    """Log-probs of decisions, and the gradient of a loss with another weight for each."""
    policy.zero_grad(set_to_none=True)
    current = policy(rollouts)
    weights = torch.linspace(-1, 1, rollouts.mask.numel()).view(rollouts.mask.shape)
    (weights * (current.log_probs + 0.1 * current.entropy) * rollouts.mask).sum().backward()
    return current.log_probs.detach() * rollouts.mask, gradient(policy)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("architecture", SHARING)
def test_a_shared_prompt_changes_neither_log_probs_nor_gradients(
    make, transformers_log_probs, allow, architecture, rounding
):
    policy, rollouts = make(architecture), random_rollouts()
    assert policy.ability.shared_training, policy.notes
    shared = log_probs_and_gradient(policy, rollouts)
    costs = policy.costs(rollouts)
    allow(policy, training="plain")
    assert (costs < policy.costs(rollouts)).any()  # rows of one prompt have a part of it each
    rounding.same(lambda: log_probs_and_gradient(policy, rollouts), shared)
    rounding.same(lambda: transformers_log_probs(policy, rollouts), shared[0] * rollouts.mask)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma2"])
@pytest.mark.parametrize("share", [True, False])
def test_micro_batches_do_not_change_the_gradient(make, architecture, share, rounding):
    policy, rollouts = make(architecture, share_prompt=share, temperature=0.7), random_rollouts()
    weights = torch.linspace(-1, 1, rollouts.mask.numel()).view(rollouts.mask.shape)

    def gradient_by(budget):
        policy.zero_grad(set_to_none=True)
        covered = []
        for rows, decisions in policy.microbatches(rollouts, budget, cut_decisions=True):
            piece = rollouts.select(rows)
            log_probs = policy(piece, decisions).log_probs
            (weights[rows, decisions] * log_probs * piece.mask[:, decisions]).sum().backward()
            covered += rows.tolist()
        assert sorted(covered) == list(range(6))
        return gradient(policy)

    rounding.same(lambda: gradient_by(10_000), *map(gradient_by, (1, 12, 20)))


def test_a_slice_of_decisions_has_the_log_probs_of_all_decisions(make, rounding):
    policy, rollouts = make(), random_rollouts()
    complete, part = policy(rollouts), policy(rollouts, slice(2, 5))
    mask = rollouts.mask[:, 2:5]
    expected = complete.log_probs[:, 2:5][mask]
    rounding.same(lambda: policy(rollouts, slice(2, 5)).log_probs[mask], expected)
    assert part.log_probs.shape == part.entropy.shape == (6, 3)


def test_log_probs_of_padding_are_zero(make):
    policy, rollouts = make(), random_rollouts()
    log_probs = policy(rollouts).log_probs
    assert not log_probs[~rollouts.mask].any()


def test_an_end_token_that_is_also_the_pad_token_is_a_decision(
    make, transformers_log_probs, rounding
):
    policy = make(model={"pad": "<|end|>", "pad_token_id": 0})
    assert policy.tokenizer.pad_token_id in policy.ends
    rollouts = random_rollouts()
    ids = rollouts.trajectory["completion_ids"].clone()
    last = rollouts.lengths - 1
    ids[torch.arange(6), last] = policy.tokenizer.eos_token_id
    rollouts = Rollouts(
        **{**vars(rollouts), "trajectory": {**rollouts.trajectory, "completion_ids": ids}}
    )
    ours = policy(rollouts).log_probs
    assert (ours[torch.arange(6), last] < 0).all()
    rounding.same(lambda: policy(rollouts).log_probs, transformers_log_probs(policy, rollouts))


def test_rollouts_without_any_decision(make):
    policy, rollouts = make(), random_rollouts()
    undecided = Rollouts(**{**vars(rollouts), "mask": torch.zeros_like(rollouts.mask)})
    for piece in (undecided, undecided.select([2, 3])):  # the second has width 0
        log_probs = policy(piece).log_probs
        log_probs.sum().backward()
        assert log_probs.shape == piece.mask.shape
        assert not log_probs.any()


def test_softcapped_logits_are_computed_by_the_models_own_head(make):
    policy = make("gemma2")
    assert any("own logits" in note for note in policy.notes)
    assert not policy.ability.numerics.plain_head
    assert make("gemma3").notes == []


def test_own_heads_compute_logits_of_completions_only(make, monkeypatch):
    policy, rollouts, shapes = make("gemma2", share_prompt=False), random_rollouts(), []
    monkeypatch.setattr(
        policy.model.lm_head, "forward", lambda hidden: shapes.append(hidden.shape) or hidden
    )
    with pytest.raises(IndexError):  # the replaced head returns hidden states instead of logits
        policy(rollouts)
    # The longest row has 11 + 9 tokens, of which the last predicts nothing; the shortest prompt 2.
    assert shapes[0][:2] == (6, 11 + 9 - 1 - (2 - 1))


def test_large_logits_in_bf16_keep_the_plain_head(make):
    policy = make("llama", model={"initializer_range": 1.0}, precision="bf16")
    assert policy.notes == []
    assert policy.ability.numerics == Numerics(precision="bf16", plain_head=True)


@pytest.mark.parametrize("error", [ValueError("no cache here"), None])
def test_a_cache_that_fails_or_disagrees_is_reported_and_not_used(
    make, transformers_log_probs, monkeypatch, error, rounding
):
    class Bad(causal.MaskedCache):
        def reorder_cache(self, rows):
            if error:
                raise error
            super().reorder_cache(rows.flip(0))

    monkeypatch.setattr(causal, "MaskedCache", Bad)
    policy = make("gemma3")
    training, sampling = policy.notes
    assert training.startswith("prompts are not shared in training: ")
    assert ("fails (no cache here)" if error else "log-probs differ by") in training
    # Decoding drops ended rows by the same method.
    assert sampling.startswith("completions are sampled without a cache, which is slow: ")
    assert not policy.ability.decoding.cached
    rollouts = random_rollouts()
    rounding.same(lambda: policy(rollouts).log_probs, transformers_log_probs(policy, rollouts))
    sampled = policy.sample([{"prompt": "ab"}, {"prompt": "abc"}], group_size=2, seeds=range(4))
    rounding.same(lambda: policy(sampled).log_probs, sampled.sampler_log_probs)


def test_a_head_that_cannot_be_separated_is_left_to_the_model(
    make, transformers_log_probs, monkeypatch, rounding
):
    original = CausalModel._layers

    def layers(self, ids, *, plain, **options):
        if plain:
            raise AttributeError("no such part")
        return original(self, ids, plain=plain, **options)

    monkeypatch.setattr(CausalModel, "_layers", layers)
    policy = make()
    assert "own logits" in policy.notes[0]
    rollouts = random_rollouts()
    rounding.same(lambda: policy(rollouts).log_probs, transformers_log_probs(policy, rollouts))


def test_rows_of_a_group_keep_their_own_prompts(make, transformers_log_probs, rounding):
    # As a sampler that gives the rollouts of a group different contexts, of any length.
    policy, rollouts = make(), random_rollouts()
    prompts = [ids.clone() for ids in rollouts.trajectory["prompt_ids"]]
    prompts[1] = (prompts[1] + 1) % 200
    prompts[4] = prompts[4][3:]
    rollouts = replace(rollouts, trajectory={**rollouts.trajectory, "prompt_ids": prompts})
    assert policy.ability.shared_training
    expected = transformers_log_probs(policy, rollouts)
    allowed = rounding.bounds(lambda: policy(rollouts).log_probs)
    assert rounding.excess(policy(rollouts).log_probs, expected, allowed) <= 1
    parts = policy.microbatches(rollouts, 24, cut_decisions=True)
    for rows, decisions in parts:
        own = policy(rollouts.select(rows), decisions).log_probs
        wanted = expected[rows, decisions]
        assert rounding.excess(own, wanted, allowed) <= 1
        heads = {tuple(prompts[row].tolist()) for row in rows.tolist()}
        tokens = sum(map(len, heads)) + int(rollouts.lengths[rows].sum())
        assert len(rows) == 1 or tokens <= 24
    assert max(len(rows) for rows, _ in parts) > 1


def test_groups_with_the_same_prompt_share_it(make):
    policy, rollouts = make(), random_rollouts()
    # Equal tokens in tensors of their own, as after a checkpoint or another process.
    prompts = [torch.arange(5, 16) for _ in range(6)]
    rollouts = replace(rollouts, trajectory={**rollouts.trajectory, "prompt_ids": prompts})
    tokens = []
    embedding = policy.causal.causal.get_input_embeddings()
    embedding.register_forward_hook(lambda _, inputs, __: tokens.append(inputs[0].numel()))
    policy(rollouts)
    assert tokens == [11 + int((rollouts.lengths - 1).sum())]


SETTINGS = {"full": {}, "adapters": {"lora": {"rank": 4}}}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma3"])
@pytest.mark.slow(after=2)
def test_gradient_checkpointing_keeps_the_shared_prompt(
    make, monkeypatch, architecture, settings, rounding
):
    rollouts = random_rollouts()
    plain = make(architecture, **settings)
    policy = make(architecture, gradient_checkpointing=True, **settings)
    assert policy.ability.shared_training
    assert policy.notes == []
    tokens = []
    embedding = policy.causal.causal.get_input_embeddings()
    embedding.register_forward_hook(lambda _, inputs, __: tokens.append(inputs[0].numel()))
    ours = log_probs_and_gradient(policy, rollouts)
    # Each prompt once, then the completions without their last tokens.
    prompts = {tuple(ids.tolist()) for ids in rollouts.trajectory["prompt_ids"]}
    width = max(map(len, prompts))
    padded = [len(prompts) * width, 6 * (rollouts.mask.shape[1] - 1)]
    packed = [sum(map(len, prompts)) + int((rollouts.lengths - 1).sum())]
    assert tokens == (padded if architecture == "gemma3" else packed)
    rounding.same(lambda: log_probs_and_gradient(plain, rollouts), ours)


def test_gradient_checkpointing_notes_that_prompts_cannot_be_shared(make_of, rounding):
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
    rollouts = random_rollouts()
    with policy.causal.recomputation.off():
        plain = log_probs_and_gradient(policy, rollouts)
    ours, _ = log_probs_and_gradient(policy, rollouts)
    assert torch.equal(ours, plain[0])
    rounding.same(lambda: log_probs_and_gradient(policy, rollouts), plain)


def test_checkpointing_recomputes_and_dropout_stays_off(make):
    policy = make(
        "gpt2", model={"resid_pdrop": 0.5, "attn_pdrop": 0.5}, gradient_checkpointing=True
    )
    first, second = policy(random_rollouts()).log_probs, policy(random_rollouts()).log_probs
    assert torch.equal(first, second)
    passes = []
    policy.model.transformer.h[0].ln_1.register_forward_hook(lambda *_: passes.append(1))
    policy(random_rollouts()).log_probs.sum().backward()
    assert len(passes) == 2  # the second in the backward pass
    with policy.causal.recomputation.off():
        policy(random_rollouts()).log_probs.sum().backward()
    assert len(passes) == 3
