"""Sampling: against transformers' generate and processors, and the laws of seeds and ratios."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList

from groupwise_llm.decoding import drawing, sampling
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
def test_greedy_is_generate_token_by_token(make, rows, architecture, penalty):
    policy = make(architecture, repetition_penalty=penalty, temperature=0.7)
    ours = ids_of(sample(policy, rows, 1, "greedy"))
    for row, got in zip(rows, ours, strict=True):
        prompt = policy.tokenizer(row["prompt"], return_tensors="pt")
        theirs = policy.model.generate(
            **prompt, do_sample=False, max_new_tokens=12, repetition_penalty=penalty,
            eos_token_id=policy.ends, pad_token_id=0,
        )  # fmt: skip
        assert got == theirs[0, prompt["input_ids"].shape[1] :].tolist()


FILTERS = [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 6, "top_p": 0.8, "min_p": 0.05}]


@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_the_tokens_allowed_are_those_of_transformers_processors(settings):
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
    common = expected >= 5
    cells = torch.cat([expected[common], expected[~common].sum().view(1)])
    seen = torch.cat([counts[common], counts[~common].sum().view(1)])
    some = cells > 0
    chi_square = ((seen[some] - cells[some]) ** 2 / cells[some]).sum()
    freedom = int(some.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


# ---- the inverse of the cumulative distribution


def drawn(weights, draws):
    return drawing.inverse_cdf(weights, drawing.block_sums(weights), draws)


@pytest.mark.parametrize("size", [3, 256, 257, 1000])
def test_inverse_cdf_in_two_levels_is_that_in_one(size):
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(500, size, generator=generator) ** 8
    weights[:, ::3] = 0.0
    draws = torch.rand(500, generator=generator, dtype=torch.float64)
    running = weights.double().cumsum(-1)
    target = draws.unsqueeze(1) * running[:, -1:]
    expected = torch.searchsorted(running, target, right=True).squeeze(1)
    assert torch.equal(drawn(weights, draws), expected)


def test_the_ends_of_the_unit_interval_give_tokens_with_weight():
    weights = torch.zeros(2, 600)
    weights[:, 300], weights[:, 301] = 1.0, 1e-30
    draws = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    chosen = drawn(weights, draws)
    assert (weights.gather(1, chosen.unsqueeze(1)) > 0).all()


def test_a_rare_token_beside_a_likely_one_is_drawn_as_often_as_it_should_be():
    """Its weight is lost in the block's sum in float32."""
    weights = torch.zeros(1, 600)
    weights[0, 0], weights[0, 200:232] = 1.0, 1e-9
    assert drawing.block_sums(weights)[0, 0] == 1.0
    total = 1 + 32e-9
    for place in range(32):
        draw = torch.tensor([(1 + (place + 0.5) * 1e-9) / total], dtype=torch.float64)
        assert drawn(weights, draw) == 200 + place


def test_the_vocabulary_is_never_copied_to_float64():
    weights, draws = torch.rand(3, 5000), torch.rand(3, dtype=torch.float64)
    with Float64() as sizes:
        drawn(weights, draws)
    assert 0 < sizes.largest <= 3 * drawing.BLOCK


class Float64(TorchDispatchMode):
    """The most elements any result in float64 had."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.largest = max(self.largest, result.numel())
        return result


def test_sums_in_float64_are_taken_where_there_is_float64():
    assert drawing.place(torch.device("mps")) == torch.device("cpu")
    assert drawing.place(torch.device("cuda", 1)) == torch.device("cuda", 1)


def test_a_device_without_float64_draws_the_same(make, rows, monkeypatch):
    expected = ids_of(sample(make(), rows))
    monkeypatch.setattr(drawing, "place", lambda device: torch.device("cpu"))
    moved, original = [], drawing.inverse_cdf

    def inverse_cdf(weights, sums, uniform):
        moved.append((weights.dtype, uniform.device.type))
        return original(weights, sums, uniform)

    monkeypatch.setattr(drawing, "inverse_cdf", inverse_cdf)
    assert ids_of(sample(make(), rows)) == expected
    assert set(moved) == {(torch.float32, "cpu")}


# ---- seeds name samples


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma3"])
@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9, "repetition_penalty": 1.3}], ids=str)
def test_a_seed_gives_its_tokens_whatever_else_is_in_the_batch(
    make, rows, allow, architecture, settings
):
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
    for way in ({"shared": False}, {"padded": False}, {"cached": False}):
        allow(policy, **way)
        assert ids_of(sample(policy, rows)) == together


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_when_rows_leave_the_batch_changes_nothing(make, rows, monkeypatch, share):
    policy = make(max_new_tokens=20)
    expected = ids_of(sample(policy, rows))
    monkeypatch.setattr(sampling, "COMPACT_AT", share)
    assert ids_of(sample(policy, rows)) == expected


def test_padding_does_not_count_as_repetition(make):
    policy = make(repetition_penalty=1e9, max_new_tokens=3)
    short, long = {"prompt": "ab"}, {"prompt": "a far longer prompt"}
    assert (
        ids_of(sample(policy, [short, long], 1, "greedy"))[0]
        == ids_of(sample(policy, [short], 1, "greedy"))[0]
    )


# ---- law 2 and law 3: the ratio is one, of the full softmax


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6}, {"top_k": 5, "repetition_penalty": 1.2}], ids=str
)
def test_sampled_log_probs_are_forwards(make, plain, rows, architecture, settings):
    policy = make(architecture, **settings)
    rollouts = sample(policy, rows)
    with torch.no_grad():
        forward = policy(rollouts).log_probs
        torch.testing.assert_close(
            rollouts.sampler_log_probs, plain(policy, rollouts), rtol=0, atol=1e-4
        )
    gap = (forward - rollouts.sampler_log_probs)[rollouts.mask].abs().max()
    assert gap < 1e-4
    assert not rollouts.sampler_log_probs[~rollouts.mask].any()


def test_in_bf16_the_ratio_stays_near_one(make, rows):
    policy = make(precision="bf16")
    rollouts = sample(policy, rows)
    gap = (policy(rollouts).log_probs - rollouts.sampler_log_probs)[rollouts.mask].abs()
    assert gap.max() < 0.1
    assert gap.mean() < 0.02


def test_kept_mass_is_what_the_filters_leave(make, rows):
    assert sample(make(), rows).facts["sampled_mass"] == pytest.approx([1.0] * 12)
    policy = make(top_k=2, max_new_tokens=1)
    rollouts = sample(policy, rows)
    for prompt, mass in zip(
        rollouts.trajectory["prompt_ids"], rollouts.facts["sampled_mass"], strict=True
    ):
        with torch.no_grad():
            probabilities = policy.model(prompt.unsqueeze(0)).logits[0, -1].softmax(-1)
        assert mass == pytest.approx(float(probabilities.topk(2).values.sum()), abs=1e-5)


@pytest.mark.parametrize(
    "settings", [{"repetition_penalty": 3.0}, {"repetition_penalty": 1.5, "top_k": 4}], ids=str
)
def test_kept_mass_counts_what_a_penalty_moves(make, rows, settings):
    policy = make(max_new_tokens=1, **settings)
    rollouts = sample(policy, rows)
    filters = policy._decoder("train").filters
    for prompt, mass in zip(
        rollouts.trajectory["prompt_ids"], rollouts.facts["sampled_mass"], strict=True
    ):
        with torch.no_grad():
            logits = policy.model(prompt.unsqueeze(0)).logits[:, -1]
        full, drawn = logits.softmax(-1), filters(prompt.unsqueeze(0), logits).softmax(-1)
        distance = 0.5 * (full - drawn).abs().sum()
        assert mass == pytest.approx(1 - float(distance), abs=1e-5)
        assert mass < 0.999


# ---- evaluation


def test_evaluation_chooses_by_settings_of_its_own(make, rows, plain):
    cold = {"temperature": 1e-4, "repetition_penalty": 1.0}
    policy = make(repetition_penalty=1.4, evaluation=cold)
    greedy = ids_of(sample(make(), rows, 1, "greedy"))
    evaluated = sample(policy, rows, 1, "evaluate")
    assert ids_of(evaluated) == greedy
    # Log-probs stay those of `forward`.
    with torch.no_grad():
        torch.testing.assert_close(
            evaluated.sampler_log_probs, plain(policy, evaluated), rtol=0, atol=1e-4
        )
    assert ids_of(sample(policy, rows, 1, "greedy")) == greedy
    trained = sample(policy, rows)
    assert ids_of(trained) == ids_of(sample(make(repetition_penalty=1.4), rows))
    assert ids_of(trained) == ids_of(sample(make(repetition_penalty=1.4), rows, purpose="evaluate"))


# ---- a bound on the cache


@pytest.mark.parametrize("way", [{}, {"shared": False}, {"padded": False}, {"cached": False}])
@pytest.mark.parametrize("cache_tokens", [1, 60, 150, 400])
def test_a_bound_on_the_cache_changes_no_completion(make, allow, rows_seen, cache_tokens, way):
    rows = [{"prompt": "a longer prompt: 12+34="}, {"prompt": "Hi"}, {"prompt": "7-5"}]
    expected = sample(make(), rows, 3)
    policy = make(cache_tokens=cache_tokens)
    allow(policy, **way)
    shapes = rows_seen(policy)
    rollouts = sample(policy, rows, 3)
    assert ids_of(rollouts) == ids_of(expected)
    log_probs = expected.sampler_log_probs
    torch.testing.assert_close(rollouts.sampler_log_probs, log_probs, rtol=0, atol=1e-4)
    longest = max(len(ids) for ids in rollouts.trajectory["prompt_ids"])
    widest = max(rows for rows, _ in shapes)
    assert widest == 1 or widest * 14 <= cache_tokens
    if cache_tokens == 400 and not way:
        assert shapes[0] == (3, longest)
    # Groups stay together where one fits: 3 x (2 + 12) tokens, but not 3 x (23 + 12).
    if cache_tokens == 60 and not way:
        assert [n for n, t in shapes if t > 1] == [1] * 5


# ---- where completions end


def forced(policy, script):
    """Let the policy choose `script`'s tokens, one list a row, whatever the model says."""
    position = {}

    class Force:
        def __call__(self, history, logits):
            step = position["step"] = position.get("step", -1) + 1
            chosen = torch.full_like(logits, -1e9)
            for row in range(len(logits)):
                chosen[row, script[step] if step < len(script) else 5] = 0.0
            return chosen

    decoder = policy._decoder
    policy._decoder = lambda purpose: replace(
        decoder(purpose), filters=LogitsProcessorList([Force()])
    )
    return policy


def test_every_end_token_ends_and_is_a_decision(make):
    policy = make(model={"eos_token_id": [0, 1]})
    assert policy.ends == [0, 1]
    for end in policy.ends:
        rollouts = sample(forced(policy, [7, 8, end, 9]), [{"prompt": "ab"}], 2)
        assert ids_of(rollouts) == [[7, 8, end]] * 2
        assert not rollouts.truncated.any()
        assert rollouts.mask.tolist() == [[True] * 3] * 2
        assert "<|" not in rollouts.completions[0]


def test_the_limit_truncates_unless_the_last_token_ends(make):
    policy = make(max_new_tokens=3)
    cut = sample(forced(policy, [7, 8, 9]), [{"prompt": "ab"}], 2)
    assert cut.truncated.all()
    done = sample(forced(policy, [7, 8, 0]), [{"prompt": "ab"}], 2)
    assert not done.truncated.any()
    assert ids_of(done) == [[7, 8, 0]] * 2


def test_a_stop_string_ends_a_completion_and_the_prompt_does_not_count(make):
    policy = make(stop=["xy"])
    x, y, z = (policy.tokenizer(letter)["input_ids"][0] for letter in "xyz")
    rollouts = sample(forced(policy, [y, z, x, y, z]), [{"prompt": "abx"}, {"prompt": "x"}], 2)
    assert ids_of(rollouts) == [[y, z, x, y]] * 4
    assert rollouts.completions == ["yzxy"] * 4
    assert not rollouts.truncated.any()


# ---- work that is not done twice


@pytest.fixture
def rows_seen(monkeypatch):
    """The shape of every batch of tokens that the model is given."""

    def watch(policy):
        shapes, original = [], policy.causal._layers

        def layers(ids, **options):
            shapes.append(tuple(ids.shape))
            return original(ids, **options)

        monkeypatch.setattr(policy.causal, "_layers", layers)
        return shapes

    return watch


def test_each_prompt_is_computed_once_for_its_group(make, rows, rows_seen):
    policy = make()
    shapes = rows_seen(policy)
    rollouts = sample(policy, rows, 5)
    longest = max(len(ids) for ids in rollouts.trajectory["prompt_ids"])
    assert shapes[0] == (3, longest)
    assert shapes[1] == (15, 1)
    del shapes[:]
    policy(rollouts)
    assert shapes == [(3, longest), (15, rollouts.mask.shape[1] - 1)]


def test_rows_that_have_ended_leave_the_batch(make, rows, rows_seen, monkeypatch):
    policy = make(max_new_tokens=60, temperature=2.0, model={"eos_token_id": list(range(20))})
    monkeypatch.setattr(sampling, "COMPACT_AT", 1.0)
    shapes = rows_seen(policy)
    rollouts = sample(policy, rows, 6)
    lengths = rollouts.lengths
    assert len(lengths.unique()) > 3
    assert [n for n, _ in shapes[1:]] == [int((lengths > t).sum()) for t in range(1, lengths.max())]


def test_a_prompt_of_several_lengths_and_a_group_of_one(make, rows):
    rollouts = sample(make(), rows, 1)
    assert rollouts.groups.tolist() == [0, 1, 2]
    assert rollouts.prompts == rows
