"""Memory estimates: activations against what autograd saves, the cache, shards and copies."""

import itertools
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Qwen2Config

from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise_llm.estimates import counting, memory
from groupwise_llm.estimates.counting import Shape
from groupwise_llm.files import loading
from groupwise_llm.model.adapters import with_adapters
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_llm.training import passes
from groupwise_llm.training.packing import pack
from groupwise_llm.training.passes import Sequences

TABLES = run_path(str(Path(__file__).with_name("architectures.py")))
TABLE = TABLES["ATTENTION"] | TABLES["RECURRENT"]
SETTINGS = {
    "full": {},
    "checkpoints": {"gradient_checkpointing": True},
    "adapters on bf16": {"lora": {"rank": 4}, "loading": {"dtype": "bfloat16"}},
    "bf16": {"precision": "bf16"},
}
SHAPES = {
    "long completions": Shape(prompts=2, prompt=20, rows=4, completion=60),
    "long prompts": Shape(prompts=2, prompt=90, rows=8, completion=10),
}


def model_of(name, settings):
    config = CONFIG_MAPPING[name](**TABLE[name])
    model = AutoModelForCausalLM.from_config(config, dtype=loading.dtype_of(settings))
    return with_adapters(model, settings.lora) if settings.lora else model


def saved_bytes(model, numerics, shape, by):
    """Bytes that autograd saves in the forward passes of training, with real tensors."""
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    # Every other prompt is a token shorter, so that attention needs a mask.
    prompts = [torch.full((shape.prompt - number % 2,), 7) for number in range(shape.prompts)]
    groups = torch.arange(shape.rows) % shape.prompts
    rows = [prompts[group] for group in groups.tolist()]
    ids = torch.full((shape.rows, shape.completion), 9)
    mask = torch.ones_like(ids, dtype=torch.bool)
    sequences = Sequences.of(rows, ids, mask, mask.nonzero(as_tuple=True))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = passes.likelihood(model, numerics, sequences, by=by, temperature=1.0)
    del outputs
    for weight in (*model.parameters(), *model.buffers(), *model.copies.tensors()):
        storages.pop(weight.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", ["qwen2", "gpt2", "qwen3_moe", "gemma2"])
@pytest.mark.slow(after=8)
def test_the_estimate_of_saved_activations_matches_autograd(name, settings, shape):
    settings = Settings(model="m", **settings)
    checkpoints = settings.gradient_checkpointing
    model = CausalModel(model_of(name, settings), recompute=checkpoints)
    numerics = Numerics(precision=settings.precision, plain_head=name != "gemma2")
    expected = saved_bytes(model, numerics, shape, "cached" if name == "gemma2" else "packed")
    with torch.device("meta"):
        model = model_of(name, settings)
    with counting.without_data(model, settings) as causal:
        assert counting.logits_are_the_product(causal) == numerics.plain_head
        estimated = counting.saved(causal, numerics, shape)
    assert estimated == pytest.approx(expected, rel=0.05 if checkpoints else 0.02)


@pytest.mark.parametrize(
    ("name", "changes", "plain"),
    [
        ("gemma2", {}, False),
        ("gemma2", {"final_logit_softcapping": None}, True),
        ("cohere2", {}, False),
        ("recurrent_gemma", {}, False),
        ("granite", {"logits_scaling": 8.0}, False),
        ("granite", {}, True),
        ("opt", {}, True),
        ("qwen3_moe", {}, True),
        ("qwen3_next", {}, True),
    ],
    ids=str,
)
@pytest.mark.slow(after=3)
def test_logits_of_heads_beyond_a_product_are_counted(name, changes, plain):
    config = CONFIG_MAPPING[name](**{**TABLE[name], **changes})
    settings = Settings(model="m", max_new_tokens=40, max_prompt_tokens=60)
    counts = {"decisions": 860, "rollouts": 100, "group_size": 100, "sampled": 4}
    load = Workload(**counts, training=True, reference=False, averages=0)
    sizes = memory.estimate(config, settings, load)
    logits = 4 * 800 * config.vocab_size
    assert (sizes[memory.LOGITS] == 2 * logits) == (not plain)
    # The layers are tiny: hidden states of 32, logits of 258.
    assert (sizes["activations"] > 3 * logits) or plain


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma3_text"])
def test_the_estimated_cache_is_that_of_decoding(name):
    settings = Settings(model="m")
    causal, numerics = CausalModel(model_of(name, settings)).eval(), Numerics("float32", True)
    cache = causal.new_cache()
    with torch.no_grad():
        ids = torch.ones(3, 40, dtype=torch.int64)
        causal.hidden(lambda hidden: hidden(ids, cache=cache), numerics)
    expected = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    with torch.device("meta"):
        model = model_of(name, settings)
    with counting.without_data(model, settings) as causal:
        assert 3 * counting.cached(causal, numerics, 40) == expected


CONFIG = Qwen2Config(**TABLE["qwen2"])


def estimate(budget=1000, sampled=100, shards=1, kept=False, **settings):
    settings = Settings(**{"model": "m", "max_new_tokens": 40, "max_prompt_tokens": 60, **settings})
    load = Workload(
        decisions=budget,
        rollouts=400,
        group_size=8,
        sampled=sampled,
        training=True,
        reference=kept,
        averages=int(kept),
        shards=shards,
    )
    return memory.estimate(CONFIG, settings, load)


@pytest.mark.parametrize("lengths", [(20, 200), (400, 50), (1000, 16)], ids=str)
def test_the_estimate_is_for_the_largest_packed_micro_batch(lengths):
    prompt, completion = lengths
    size, budget = 64, 4096
    settings = Settings(model="m", max_prompt_tokens=prompt, max_new_tokens=completion)
    config = Qwen2Config(**{**TABLE["qwen2"], "max_position_embeddings": 4096})
    load = Workload(
        decisions=budget,
        rollouts=size,
        group_size=8,
        sampled=0,
        training=True,
        reference=False,
        averages=0,
    )
    counted = memory._largest(config, settings, load)
    parts = pack(
        torch.full((size,), completion),
        torch.full((size,), prompt),
        shared=[row // 8 for row in range(size)],
        budget=budget,
        overhead=0,
    )
    rows = max(map(len, parts))
    assert rows <= counted.rows < 1.5 * rows
    assert counted.prompts == -(-counted.rows // 8)


def test_check_refuses_to_shard_quantised_weights(saved):
    settings = Settings(model=str(saved()), quantize="4bit", lora={}, max_new_tokens=12)
    counts = {"decisions": 100, "rollouts": 8, "group_size": 4, "sampled": 8, "averages": 0}
    load = Workload(**counts, training=True, reference=False)
    assert LanguageModel.estimate(settings, load)
    with pytest.raises(UserError, match=r"policy\.quantize: .* leave out train\.shard"):
        LanguageModel.estimate(settings, replace(load, shards=2))


def test_shards_divide_weights_gradients_optimizer_and_copies():
    full, sharded = estimate(kept=True), estimate(kept=True, shards=3)
    for purpose in ("weights", "gradients", "optimizer", "reference", "moving average"):
        assert sharded[purpose] == -(-full[purpose] // 3)
    for purpose in ("activations", "cache of the sampler", memory.LOGITS):
        assert sharded[purpose] == full[purpose]
    assert sharded["weights gathered for sampling"] == full["weights"]


def test_gathered_weights_are_counted_in_the_dtype_of_computation():
    lora = {"rank": 2}
    exact, half, adapters = (
        estimate(shards=3, precision=precision, lora=lora)
        for precision, lora in [("float32", None), ("bf16", None), ("bf16", lora)]
    )
    for purpose in ("gathered blocks", "weights gathered for sampling"):
        assert half[purpose] == exact[purpose] / 2
        assert half[purpose] < adapters[purpose] < 1.5 * half[purpose]
    # For a frozen model only the adapters have gradients.
    assert adapters["gradients of gathered blocks"] < half["gradients of gathered blocks"] / 4


def test_memory_of_only_sampling_and_of_only_updating():
    sampling, updating = estimate(budget=0, shards=2), estimate(sampled=0, shards=2)
    assert sampling.keys() - updating.keys() == {
        "cache of the sampler",
        "weights gathered for sampling",
    }
    assert updating.keys() - sampling.keys() == {
        "activations",
        "gradients of gathered blocks",
        memory.LOGITS,
    }


@pytest.mark.slow
def test_the_loading_dtype_applies_to_frozen_weights():
    full, rounded = estimate(), estimate(loading={"dtype": "bfloat16"})
    assert rounded["weights"] == full["weights"]
    lora = {"rank": 2}
    full, rounded = estimate(lora=lora), estimate(lora=lora, loading={"dtype": "bfloat16"})
    adapters = full["gradients"]
    assert rounded["weights"] - adapters == (full["weights"] - adapters) / 2
    assert rounded["gradients"] == adapters


@pytest.mark.slow
def test_copies_in_bf16_are_counted():
    lora, bf16 = {"rank": 2}, {"precision": "bf16"}
    full, half = estimate(), estimate(**bf16)
    assert half["copy in bf16"] == full["weights"] / 2
    assert half["weights"] == full["weights"]
    assert half["cache of the sampler"] == full["cache of the sampler"] / 2
    frozen = estimate(lora=lora, loading={"dtype": "bfloat16"}, **bf16)
    assert frozen["copy in bf16"] == frozen["gradients"] / 2  # of the adapters only
    assert 0 < frozen["merged adapters while sampling"] < frozen["weights"]
    assert "merged adapters while sampling" not in estimate(lora={**lora, "merge": False})


def test_the_cache_is_limited_by_rollouts_and_by_cache_tokens():
    sizes = [
        estimate(sampled=n, cache_tokens=t)["cache of the sampler"]
        for n, t in itertools.product((10, 20), (1500, 10**6))
    ]
    assert sizes[1] == sizes[0]
    assert sizes[3] == 2 * sizes[1]
    assert sizes[2] == 1.5 * sizes[0]


def test_activations_grow_with_the_budget():
    small, large = (estimate(budget=n)["activations"] for n in (1000, 4000))
    assert 3 * small < large < 5 * small
    checkpoints = estimate(budget=4000, gradient_checkpointing=True)
    assert checkpoints["activations"] < large / 5
    assert checkpoints["activations of a layer"] > checkpoints["activations"]


def test_a_model_that_needs_data_is_reported_as_not_counted(monkeypatch):
    def reads_a_value(*_, **__):
        raise RuntimeError("a value is needed")

    monkeypatch.setattr(CausalModel, "_layers", reads_a_value)
    assert estimate()["activations and cache: not counted (a value is needed)"] == 0
