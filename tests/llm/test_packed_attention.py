"""Packed rows: attention without a mask is that of masked attention, and its gradient, too."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CONFIG_MAPPING

from groupwise.rollouts import Rollouts
from groupwise_llm.model import kernels
from groupwise_llm.model.attention import Layout, attention

CPU = torch.device("cpu")
CASES = {
    "several groups": ([5, 9, 3], [[4, 4, 2], [6, 1], [3, 3, 3]]),
    "equal lengths": ([6, 6], [[5, 5], [5, 5]]),
    "a group of one row": ([7], [[4]]),
    "a row without tokens": ([4, 8], [[3, 0], [5]]),
    "a prompt alone": ([4, 6, 5], [[3], [2], [0, 0]]),
    "prompts alone": ([4, 6], [[0], [0]]),
}
HEADS = {"grouped": (6, 2), "one key for all": (4, 1), "as many": (3, 3)}


def states(prompts, completions, heads, **options):
    """(q, k, v), and a gradient of the output."""
    generator, (heads, keys) = torch.Generator().manual_seed(0), heads
    total = sum(prompts) + sum(map(sum, completions))
    sizes = [(total, heads, 16), (total, keys, 16), (total, keys, 16), (total, heads, 16)]
    tensors = [torch.randn(size, generator=generator).to(**options) for size in sizes]
    return [tensor.requires_grad_() for tensor in tensors[:3]], tensors[3]


def allowed(prompts, completions):
    """[N, N] bool: whether token i attends to token j, from the definition."""
    sequence, prompt_of = [], []
    for number, length in enumerate(prompts):
        sequence += [number] * length
        prompt_of += [number] * length
    rows = itertools.count(len(prompts))
    for number, own in enumerate(completions):
        for length in own:
            sequence += [next(rows)] * length
            prompt_of += [number] * length
    sequence, prompt_of = torch.tensor(sequence), torch.tensor(prompt_of)
    own = (sequence[:, None] == sequence).tril()
    return own | ((prompt_of[:, None] == sequence) & (sequence[:, None] >= len(prompts)))


def masked(q, k, v, mask):
    """The same in float64, with repeated keys and a mask."""
    times = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(times, dim=1) for x in (k, v))
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3).transpose(0, 1)


def compare(case, heads, dtype, device, tolerance):
    inputs, upstream = states(*case, heads, dtype=dtype, device=device)
    ours = attention(*inputs, Layout.of(*case, torch.device(device)), 0.3)
    gradients = torch.autograd.grad(ours, inputs, upstream)
    theirs = masked(*inputs, allowed(*case).to(device))
    expected = torch.autograd.grad(theirs, inputs, upstream.double())
    for one, other in zip((ours, *gradients), (theirs, *expected), strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() <= tolerance * other.norm()


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_and_gradients_are_those_with_a_mask(case, heads):
    compare(case, heads, torch.float32, "cpu", 1e-6)


def test_attention_in_bf16():
    compare(CASES["several groups"], HEADS["grouped"], torch.bfloat16, "cpu", 0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float16, 0.01), (torch.bfloat16, 0.05)]
)
def test_attention_and_gradients_on_a_gpu(case, heads, dtype, tolerance):
    compare(case, heads, dtype, "cuda", tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_kernels_of_a_gpu_take_these_arguments(heads, dtype):
    """By shapes alone, without a GPU."""
    prompts, completions = CASES["a prompt alone"]
    with FakeTensorMode():
        layout = Layout.of(prompts, completions, torch.device("cuda"))
        (q, k, v), upstream = states(prompts, completions, heads, dtype=dtype, device="cuda")
        kernel = kernels.kernel_of(q)
        assert type(kernel) is (kernels.Efficient if dtype == torch.float32 else kernels.Flash)
        start, stop = layout.start, layout.stop
        for spans, inputs in (
            (layout.own, (q, k, v)),
            (layout.shared, (q[start:], k[:stop], v[:stop])),
        ):
            out, lse = kernel.forward(*inputs, spans, 0.3)
            assert (out.shape, out.dtype) == (inputs[0].shape, dtype)
            assert (lse.shape, lse.dtype) == (out.shape[:2], torch.float32)
            slopes = kernel.backward(upstream[-len(out) :], (*inputs, out, lse), spans, 0.3)
            assert [x.shape for x in slopes] == [x.shape for x in inputs]


class Watch(TorchDispatchMode):
    """Records the keys, and the masks, that attention is computed with."""

    def __init__(self):
        super().__init__()
        self.keys, self.masks = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(function) and "backward" not in str(function):
            self.keys.append(args[1])
            self.masks.append((kwargs or {}).get("attn_mask"))
        return function(*args, **(kwargs or {}))


def rollouts_of(prompts, lengths):
    """Two rollouts of each prompt."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(2, 200, (n,), generator=generator) for n in prompts]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = torch.randint(2, 200, mask.shape, generator=generator)
    return Rollouts(
        prompts=[{}] * len(lengths),
        completions=[""] * len(lengths),
        groups=torch.arange(len(lengths)) // 2,
        mask=mask,
        truncated=torch.zeros(len(lengths), dtype=torch.bool),
        trajectory={
            "prompt_ids": [p for p in prompts for _ in "ab"],
            "completion_ids": ids,
            "attention": mask,
        },
    )


def test_no_key_is_repeated_and_no_mask_is_made(make):
    policy = make("llama", model={"num_attention_heads": 4, "num_key_value_heads": 2})
    rollouts = rollouts_of([40, 30], [6, 6, 6, 6])
    with Watch() as watch:
        policy(rollouts).log_probs.sum().backward()
    assert watch.masks
    assert not any(mask is not None for mask in watch.masks)
    sizes = [x.untyped_storage().nbytes() for x in watch.keys]
    tokens, width = 40 + 30 + 4 * 5, policy.model.config.hidden_size // 4
    assert max(sizes) == tokens * 2 * width * 4


def log_probs_and_gradient(policy, rollouts):
    policy.zero_grad(set_to_none=True)
    values = policy(rollouts).log_probs
    (values * torch.linspace(-1, 1, values.numel()).view(values.shape)).sum().backward()
    slopes = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return values.detach(), torch.cat(slopes).double()


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 4}}, {"gradient_checkpointing": True}])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_packed_and_cached_passes_agree(make, allow, architecture, settings, rounding):
    policy = make(architecture, **settings)
    assert policy.ability.training == "packed"
    rollouts = rollouts_of([7, 2, 11], [9, 1, 4, 6, 1, 1])
    packed = log_probs_and_gradient(policy, rollouts)
    allow(policy, training="cached")
    rounding.same(lambda: log_probs_and_gradient(policy, rollouts), packed)


WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 258, "eos_token_id": 0}
CAPPED = {"layer_types": ["full_attention"] * 2, "attn_logit_softcapping": 50.0}


@pytest.mark.parametrize(
    ("name", "options"), [("mistral", {"sliding_window": 4096}), ("gemma2", CAPPED)]
)
def test_windows_and_caps_that_a_short_trial_does_not_reach(make_of, name, options):
    policy = make_of(CONFIG_MAPPING[name](**WIDE, **options))
    assert policy.ability.training == "cached"


def test_attention_is_the_models_own_outside_training_passes(make):
    policy, names = make("qwen2"), []
    layer = policy.model.model.layers[0]
    config = policy.model.config
    layer.register_forward_hook(lambda *_: names.append(config._attn_implementation))
    before = config._attn_implementation
    rollouts = policy.sample([{"prompt": "ab"}], group_size=2, seeds=range(2))
    assert set(names) == {before}
    policy(rollouts).log_probs.sum().backward()
    assert names[-1] != before
    assert config._attn_implementation == before
    layer.register_forward_pre_hook(interrupt)
    with pytest.raises(RuntimeError, match="interrupted"):
        policy(rollouts)
    assert config._attn_implementation == before


def interrupt(*_):
    raise RuntimeError("interrupted")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_kernel_that_fails_in_the_runs_precision_is_not_used(make, monkeypatch, precision):
    forward = kernels.OnCpu.forward

    def failing(self, q, *rest):
        assert q.dtype == torch.float32, "no kernel for it"
        return forward(self, q, *rest)

    monkeypatch.setattr(kernels.OnCpu, "forward", failing)
    policy = make("qwen2", precision=precision)
    assert policy.ability.training == ("packed" if precision == "float32" else "cached")
