"""Sampling: against transformers' `generate` and logits processors, and laws 2, 3 and 4."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList

from groupwise_llm.decoding import batches, drawing
from groupwise_llm.settings import Settings

ARCHITECTURES = ["qwen2", "llama", "gpt2", "gpt_neox", "gemma2", "gemma3"]


def sample(policy, rows, size=4, purpose="train", start=0):
    seeds = range(start, start + len(rows) * size)
    return policy.sample(rows, group_size=size, seeds=seeds, purpose=purpose)


def ids_of(rollouts):
    return rollouts.facts["completion_ids"]


# ---- against transformers


@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_gives_the_tokens_of_generate(make, rows, architecture, penalty):
    policy = make(architecture, repetition_penalty=penalty, temperature=0.7)
    completions = ids_of(sample(policy, rows, 1, "greedy"))
    for row, tokens in zip(rows, completions, strict=True):
        prompt = policy.tokenizer(row["prompt"], return_tensors="pt")
        output = policy.model.generate(
            **prompt, do_sample=False, max_new_tokens=12, repetition_penalty=penalty,
            eos_token_id=policy.ends, pad_token_id=0,
        )  # fmt: skip
        assert tokens == output[0, prompt["input_ids"].shape[1] :].tolist()


FILTERS = [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 6, "top_p": 0.8, "min_p": 0.05}]


@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_filters_allow_the_tokens_of_transformers_processors(settings):
    filters = drawing.filters_for(Settings(model="m", **settings))
    logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(0)) * 2
    filtered = filters(None, logits.clone())
    allowed = set((filtered[0] > -torch.inf).nonzero().flatten().tolist())
    draws = torch.linspace(0, 1, 20_001, dtype=torch.float64)[:-1]
    weights, sums = [x.expand(len(draws), -1) for x in drawing.softmax(filtered)[:2]]
    assert set(drawing.inverse_cdf(weights, sums, draws).tolist()) == allowed
    assert 0 < len(allowed) < 24


@pytest.mark.parametrize("settings", [{}, {"top_k": 8}, {"temperature": 0.5}], ids=str)
def test_frequencies_follow_the_distribution(make, settings):
    policy = make(max_new_tokens=1, **settings)
    size = 4000
    rollouts = policy.sample([{"prompt": "7-5"}], group_size=size, seeds=range(size))
    prompt = rollouts.trajectory["prompt_ids"][0].unsqueeze(0)
    with torch.no_grad():
        logits = policy.model(prompt).logits[:, -1] / policy.config.temperature
    expected = policy._decoder("train").filters(prompt, logits).softmax(-1)[0].double() * size
    counts = torch.bincount(torch.tensor(ids_of(rollouts)).flatten(), minlength=len(expected))
    assert not counts[expected == 0].any()
    frequent = expected >= 5
    expected_cells = torch.cat([expected[frequent], expected[~frequent].sum().view(1)])
    observed = torch.cat([counts[frequent], counts[~frequent].sum().view(1)])
    possible = expected_cells > 0
    chi_square = (
        (observed[possible] - expected_cells[possible]) ** 2 / expected_cells[possible]
    ).sum()
    degrees_of_freedom = int(possible.sum()) - 1
    assert chi_square < degrees_of_freedom + 4 * (2 * degrees_of_freedom) ** 0.5


# ---- the inverse of the cumulative distribution


def drawn(weights, draws):
    return drawing.inverse_cdf(weights, drawing.block_sums(weights), draws)


@pytest.mark.parametrize("size", [3, 256, 257, 1000])
def test_inverse_cdf_by_blocks_is_the_inverse_of_the_whole_cdf(size):
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(500, size, generator=generator) ** 8
    weights[:, ::3] = 0.0
    draws = torch.rand(500, generator=generator, dtype=torch.float64)
    cumulative = weights.double().cumsum(-1)
    target = draws.unsqueeze(1) * cumulative[:, -1:]
    expected = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    assert torch.equal(drawn(weights, draws), expected)


def test_the_ends_of_the_unit_interval_give_tokens_of_positive_weight():
    weights = torch.zeros(2, 600)
    weights[:, 300], weights[:, 301] = 1.0, 1e-30
    draws = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    chosen = drawn(weights, draws)
    assert (weights.gather(1, chosen.unsqueeze(1)) > 0).all()


def test_rare_tokens_beside_a_likely_one_keep_their_probability():
    """In float32 their weight would be lost in the sum of the block."""
    weights = torch.zeros(1, 600)
    weights[0, 0], weights[0, 200:232] = 1.0, 1e-9
    assert drawing.block_sums(weights)[0, 0] == 1.0
    total = 1 + 32e-9
    for index in range(32):
        draw = torch.tensor([(1 + (index + 0.5) * 1e-9) / total], dtype=torch.float64)
        assert drawn(weights, draw) == 200 + index


def test_the_vocabulary_is_never_copied_to_float64():
    weights, draws = torch.rand(3, 5000), torch.rand(3, dtype=torch.float64)
    with Float64() as sizes:
        drawn(weights, draws)
    assert 0 < sizes.largest <= 3 * drawing.BLOCK


class Float64(TorchDispatchMode):
    """Records the largest number of elements of a result in float64."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.largest = max(self.largest, result.numel())
        return result


def test_sums_in_float64_move_to_the_cpu_where_a_device_has_none():
    assert drawing.place(torch.device("mps")) == torch.device("cpu")
    assert drawing.place(torch.device("cuda", 1)) == torch.device("cuda", 1)


def test_a_device_without_float64_draws_the_same(make, rows, monkeypatch):
    expected = ids_of(sample(make(), rows))
    monkeypatch.setattr(drawing, "place", lambda device: torch.device("cpu"))
    calls, original = [], drawing.inverse_cdf

    def inverse_cdf(weights, sums, uniform):
        calls.append((weights.dtype, uniform.device.type))
        return original(weights, sums, uniform)

    monkeypatch.setattr(drawing, "inverse_cdf", inverse_cdf)
    assert ids_of(sample(make(), rows)) == expected
    assert set(calls) == {(torch.float32, "cpu")}


# ---- law 4: a sample depends only on its seed


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma3"])
@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9, "repetition_penalty": 1.3}], ids=str)
@pytest.mark.slow(after=1)
def test_a_seed_gives_the_same_tokens_in_any_batch(make, rows, allow, architecture, settings):
    policy = make(architecture, temperature=0.8, max_new_tokens=20, **settings)
    together = ids_of(sample(policy, rows))
    assert len({tuple(tokens) for tokens in together}) > 6
    for number, row in enumerate(rows):
        alone = ids_of(sample(policy, [row], start=4 * number))
        halves = [ids_of(sample(policy, [row], 2, start=4 * number + half)) for half in (0, 2)]
        assert alone == halves[0] + halves[1] == together[4 * number : 4 * number + 4]
    backwards = policy.sample(
        rows[::-1], group_size=4, seeds=[*range(8, 12), *range(4, 8), *range(4)]
    )
    assert ids_of(backwards) == together[8:] + together[4:8] + together[:4]
    for decoding in ({"shared": False}, {"padded": False}, {"cached": False}):
        allow(policy, **decoding)
        assert ids_of(sample(policy, rows)) == together


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.slow(after=1)
def test_the_moment_when_ended_rows_are_dropped_changes_no_token(make, rows, monkeypatch, share):
    policy = make(max_new_tokens=20)
    expected = ids_of(sample(policy, rows))
    monkeypatch.setattr(batches, "COMPACT_AT", share)
    assert ids_of(sample(policy, rows)) == expected


def test_padding_does_not_count_as_repetition(make):
    policy = make(repetition_penalty=1e9, max_new_tokens=3)
    short, long = {"prompt": "ab"}, {"prompt": "a far longer prompt"}
    assert (
        ids_of(sample(policy, [short, long], 1, "greedy"))[0]
        == ids_of(sample(policy, [short], 1, "greedy"))[0]
    )


# ---- laws 2 and 3: the ratio is one, and log-probs are those of the full softmax


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6}, {"top_k": 5, "repetition_penalty": 1.2}], ids=str
)
@pytest.mark.slow(after=1)
def test_the_samplers_log_probs_are_those_of_forward(
    make, transformers_log_probs, rows, architecture, settings, rounding
):
    policy = make(architecture, **settings)
    rollouts = sample(policy, rows)
    forward = policy(rollouts).log_probs * rollouts.mask
    rounding.same(
        lambda: transformers_log_probs(policy, rollouts), rollouts.sampler_log_probs, forward
    )
    assert not rollouts.sampler_log_probs[~rollouts.mask].any()


def test_in_bf16_the_ratio_stays_near_one(make, rows):
    policy = make(precision="bf16")
    rollouts = sample(policy, rows)
    gap = (policy(rollouts).log_probs - rollouts.sampler_log_probs)[rollouts.mask].abs()
    assert gap.max() < 0.1
    assert gap.mean() < 0.02


def test_sampled_mass_is_the_probability_that_the_filters_leave(make, rows, rounding):
    assert sample(make(), rows).facts["sampled_mass"] == pytest.approx([1.0] * 12)
    policy = make(top_k=2, max_new_tokens=1)
    rollouts = sample(policy, rows)
    for prompt, mass in zip(
        rollouts.trajectory["prompt_ids"], rollouts.facts["sampled_mass"], strict=True
    ):

        def left(prompt=prompt):
            probabilities = policy.model(prompt.unsqueeze(0)).logits[0, -1].softmax(-1)
            return probabilities.topk(2).values.sum()

        rounding.same(left, mass)


@pytest.mark.parametrize(
    "settings", [{"repetition_penalty": 3.0}, {"repetition_penalty": 1.5, "top_k": 4}], ids=str
)
def test_sampled_mass_counts_the_probability_moved_by_a_penalty(make, rows, settings, rounding):
    policy = make(max_new_tokens=1, **settings)
    rollouts = sample(policy, rows)
    filters = policy._decoder("train").filters
    for prompt, mass in zip(
        rollouts.trajectory["prompt_ids"], rollouts.facts["sampled_mass"], strict=True
    ):

        def left(prompt=prompt):
            logits = policy.model(prompt.unsqueeze(0)).logits[:, -1]
            full, drawn = logits.softmax(-1), filters(prompt.unsqueeze(0), logits).softmax(-1)
            return 1 - 0.5 * (full - drawn).abs().sum()

        rounding.same(left, mass)
        assert mass < 0.999


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6, "top_k": 3}], ids=str)
def test_the_entropy_of_a_completion_is_that_of_its_forward_pass(make, rows, settings, rounding):
    policy = make(**settings)
    rollouts = sample(policy, rows)

    def mean():
        entropy = policy(rollouts).entropy.masked_fill(~rollouts.mask, 0.0)
        return entropy.sum(dim=1) / rollouts.lengths

    rounding.same(mean, torch.tensor(rollouts.facts["entropy"]))


def test_the_entropy_of_logits_with_excluded_tokens(rounding):
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(0)) * 5
    logits[:, 3] = -torch.inf
    expected = torch.distributions.Categorical(logits=logits[:, logits[0].isfinite()]).entropy()
    rounding.same(lambda: drawing.entropy(logits, *drawing.softmax(logits)), expected)


# ---- evaluation


def test_evaluation_samples_by_its_own_settings(make, rows, transformers_log_probs, rounding):
    cold = {"temperature": 1e-4, "repetition_penalty": 1.0}
    policy = make(repetition_penalty=1.4, evaluation=cold)
    greedy = ids_of(sample(make(), rows, 1, "greedy"))
    evaluated = sample(policy, rows, 1, "evaluate")
    assert ids_of(evaluated) == greedy
    # The log-probs are still those of `forward`.
    log_probs = evaluated.sampler_log_probs
    rounding.same(lambda: transformers_log_probs(policy, evaluated), log_probs)
    assert ids_of(sample(policy, rows, 1, "greedy")) == greedy
    trained = sample(policy, rows)
    assert ids_of(trained) == ids_of(sample(make(repetition_penalty=1.4), rows))
    assert ids_of(trained) == ids_of(sample(make(repetition_penalty=1.4), rows, purpose="evaluate"))


# ---- a limit of the cache


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("cache_tokens", "decoding"),
    [
        *((tokens, {}) for tokens in (1, 60, 150, 400)),
        *((60, {name: False}) for name in ("shared", "padded", "cached")),
    ],
)
def test_a_limit_of_the_cache_changes_no_completion(
    make, allow, batch_shapes, cache_tokens, decoding, rounding
):
    rows = [{"prompt": "a longer prompt: 12+34="}, {"prompt": "Hi"}, {"prompt": "7-5"}]
    expected = sample(make(), rows, 3)
    policy = make(cache_tokens=cache_tokens)
    allow(policy, **decoding)
    shapes = batch_shapes(policy)
    rollouts = sample(policy, rows, 3)
    assert ids_of(rollouts) == ids_of(expected)
    longest = max(len(ids) for ids in rollouts.trajectory["prompt_ids"])
    widest = max(rows for rows, _ in shapes)
    assert widest == 1 or widest * 14 <= cache_tokens
    if cache_tokens == 400 and not decoding:
        assert shapes[0] == (3, longest)
    # A group is split if it does not fit: 3 x (2 + 12) tokens do, 3 x (23 + 12) do not.
    if cache_tokens == 60 and not decoding:
        assert [n for n, t in shapes if t > 1] == [1] * 5
    log_probs = [own.sampler_log_probs for own in (rollouts, expected)]
    rounding.same(lambda: policy(expected).log_probs * expected.mask, *log_probs)


@pytest.mark.parametrize("settings", [{}, {"top_k": 90, "repetition_penalty": 1.3}], ids=str)
def test_rows_that_wait_take_the_place_of_ended_ones(make, batch_shapes, settings, rounding):
    rows = [{"prompt": "ab" * (number % 3 + 1)} for number in range(6)]
    settings = {"max_new_tokens": 30, "model": {"eos_token_id": list(range(30))}, **settings}
    expected = sample(make(**settings), rows)
    policy = make(cache_tokens=320, **settings)
    shapes = batch_shapes(policy)
    rollouts = sample(policy, rows)
    assert ids_of(rollouts) == ids_of(expected)
    joined = [after - 4 * rows for (rows, t), (after, _) in pairwise(shapes) if t > 1]
    assert max(joined) > 0  # beside those of the new prompts
    assert max(n for n, _ in shapes) * (2 + 30) <= 320
    log_probs = [own.sampler_log_probs for own in (rollouts, expected)]
    rounding.same(lambda: policy(expected).log_probs * expected.mask, *log_probs)


@pytest.mark.slow
def test_rows_that_join_a_batch_fit_into_the_cache_with_it(make):
    policy = make(cache_tokens=400, max_new_tokens=60, model={"eos_token_id": list(range(4))})
    sizes = []

    def watch(_, __, inputs):
        rows, new = inputs["input_ids"].shape
        sizes.append(rows * (inputs["past_key_values"].get_seq_length() + new))

    policy.causal.causal.base_model.register_forward_pre_hook(watch, with_kwargs=True)
    sample(policy, [{"prompt": "ab" * (number % 3 + 1)} for number in range(30)], 3)
    assert max(sizes) <= 400


def test_turns_go_on_after_rows_have_joined_a_batch(make):
    drawn = []
    for cache_tokens in (10_000, 90):
        policy = make(
            cache_tokens=cache_tokens, max_new_tokens=24, model={"eos_token_id": list(range(30))}
        )
        with policy.session():
            contexts = policy.encode([{"prompt": "ab" * (number % 3 + 1)} for number in range(8)])
            for turn in range(2):
                limits = [11 - 2 * turn - number % 4 for number in range(8)]
                turns = policy.draw(contexts, seeds=range(8), limits=limits)
                contexts = [own.with_turn(new) for own, new in zip(contexts, turns, strict=True)]
                drawn.append([own.ids for own in turns])
    assert drawn[:2] == drawn[2:]


# ---- where completions end


def forced(policy, script):
    """Makes the policy sample the tokens of `script`, one for each step."""
    state = {}

    class Force:
        def __call__(self, history, logits):
            step = state["step"] = state.get("step", -1) + 1
            chosen = torch.full_like(logits, -1e9)
            for row in range(len(logits)):
                chosen[row, script[step] if step < len(script) else 5] = 0.0
            return chosen

    decoder = policy._decoder
    policy._decoder = lambda purpose: replace(
        decoder(purpose), filters=LogitsProcessorList([Force()])
    )
    return policy


def test_every_end_token_ends_a_completion_and_is_a_decision(make):
    policy = make(model={"eos_token_id": [0, 1]})
    assert policy.ends == [0, 1]
    for end in policy.ends:
        rollouts = sample(forced(policy, [7, 8, end, 9]), [{"prompt": "ab"}], 2)
        assert ids_of(rollouts) == [[7, 8, end]] * 2
        assert not rollouts.truncated.any()
        assert rollouts.mask.tolist() == [[True] * 3] * 2
        assert "<|" not in rollouts.completions[0]


def test_max_new_tokens_truncates_unless_the_last_token_is_an_end_token(make):
    policy = make(max_new_tokens=3)
    truncated = sample(forced(policy, [7, 8, 9]), [{"prompt": "ab"}], 2)
    assert truncated.truncated.all()
    ended = sample(forced(policy, [7, 8, 0]), [{"prompt": "ab"}], 2)
    assert not ended.truncated.any()
    assert ids_of(ended) == [[7, 8, 0]] * 2


def test_a_stop_string_ends_a_completion_and_is_not_searched_in_the_prompt(make):
    policy = make(stop=["xy"])
    x, y, z = (policy.tokenizer(letter)["input_ids"][0] for letter in "xyz")
    rollouts = sample(forced(policy, [y, z, x, y, z]), [{"prompt": "abx"}, {"prompt": "x"}], 2)
    assert ids_of(rollouts) == [[y, z, x, y]] * 4
    assert rollouts.completions == ["yzxy"] * 4
    assert not rollouts.truncated.any()


# ---- cost


def test_each_prompt_is_computed_once_for_its_group(make, rows, batch_shapes):
    policy = make()
    shapes = batch_shapes(policy)
    rollouts = sample(policy, rows, 5)
    longest = max(len(ids) for ids in rollouts.trajectory["prompt_ids"])
    assert shapes[0] == (3, longest)
    assert shapes[1] == (15, 1)
    del shapes[:]
    policy(rollouts)
    prompts = sum(len(ids) for ids in rollouts.trajectory["prompt_ids"][::5])
    completions = int(rollouts.mask.sum()) - len(rollouts)  # their last tokens predict nothing
    assert shapes == [(1, prompts + completions)]


def test_ended_rows_are_dropped_from_the_batch(make, rows, batch_shapes, monkeypatch):
    policy = make(max_new_tokens=60, temperature=2.0, model={"eos_token_id": list(range(20))})
    monkeypatch.setattr(batches, "COMPACT_AT", 1.0)
    shapes = batch_shapes(policy)
    rollouts = sample(policy, rows, 6)
    lengths = rollouts.lengths
    assert len(lengths.unique()) > 3
    assert [n for n, _ in shapes[1:]] == [int((lengths > t).sum()) for t in range(1, lengths.max())]


def test_prompts_of_several_lengths_in_groups_of_one(make, rows):
    rollouts = sample(make(), rows, 1)
    assert rollouts.groups.tolist() == [0, 1, 2]
    assert rollouts.prompts == rows
