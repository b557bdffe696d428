"""Log-probs and entropy computed in blocks, against autograd of `log_softmax` in float64."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from groupwise_llm.model import likelihood

N, H, V = 23, 8, 37


def problem(dtype=torch.float32, *, bias=True):
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    inputs = [draw(N, H), draw(V, H), draw(V)] if bias else [draw(N, H), draw(V, H)]
    tokens = torch.randint(V, (N,), generator=generator)
    tokens[:2] = torch.tensor([0, V - 1])
    slopes = draw(2, N)
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    return leaves + ([] if bias else [None]), tokens, slopes


def exact_values(leaves, tokens, temperature):
    hidden, weight, bias = [
        None if x is None else x.detach().double().requires_grad_() for x in leaves
    ]
    logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return (hidden, weight, bias), log_p.gather(1, tokens.unsqueeze(1)).squeeze(1), entropy


def gradients(weights, values, leaves):
    """Of the weighted sum of log-probs and entropies, by those leaves that there are."""
    own = [leaf for leaf in leaves if leaf is not None]
    return torch.autograd.grad(weights[0] @ values[0] + weights[1] @ values[1], own)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(likelihood, "CACHED", (5, 8))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.3)])
def test_values_and_gradients_are_those_of_log_softmax(temperature, bias, scale, rounding):
    leaves, tokens, slopes = problem(bias=bias)
    weights = slopes * torch.tensor(scale, dtype=torch.float64).unsqueeze(1)

    def ours():
        values = likelihood.log_probs_and_entropy(*leaves, tokens, temperature=temperature)
        return [*values, *gradients(weights.float(), values, leaves)]

    exact_leaves, *expected = exact_values(leaves, tokens, temperature)
    rounding.same(ours, [*expected, *gradients(weights, expected, exact_leaves)])


@pytest.mark.usefixtures("small_blocks")
def test_tokens_with_a_bias_of_minus_infinity_count_as_removed_from_the_vocabulary(rounding):
    """Tokens within a block and whole blocks, including the first."""
    (hidden, weight, bias), tokens, slopes = problem()
    excluded = [torch.arange(V) < 9, torch.arange(V) == 20, torch.arange(V) > 30]
    allowed = ~torch.stack(excluded).any(dim=0)
    tokens = tokens % int(allowed.sum())

    def result(vocabulary, ids):
        leaves = [x.detach().clone().requires_grad_() for x in (hidden, weight[vocabulary])]
        masked_bias = bias.detach().masked_fill(~allowed, -torch.inf)[vocabulary]
        values = likelihood.log_probs_and_entropy(*leaves, masked_bias, ids, temperature=0.6)
        hidden_slope, weight_slope = gradients(slopes.float(), values, leaves)
        return [*values, hidden_slope, weight_slope[allowed[vocabulary]]]

    masked = result(allowed.new_ones(V), allowed.nonzero().flatten()[tokens])
    rounding.same(lambda: result(allowed, tokens), masked)


@pytest.mark.slow
def test_the_size_of_blocks_does_not_change_the_result(monkeypatch, rounding):
    leaves, tokens, _ = problem()

    def result(block):
        monkeypatch.setattr(likelihood, "CACHED", block)
        values = likelihood.log_probs_and_entropy(*leaves, tokens)
        return [*values, *gradients(torch.ones(2, N), values, leaves)]

    rounding.same(lambda: result((1, 1)), *map(result, [(N, V), (7, 36), (1000, 1000)]))


@pytest.mark.usefixtures("small_blocks")
def test_large_logits_neither_overflow_nor_underflow(rounding):
    leaves, tokens, _ = problem()
    with torch.no_grad():
        leaves[0].mul_(200)
    log_probs, entropy = likelihood.log_probs_and_entropy(*leaves, tokens)
    _, *expected = exact_values(leaves, tokens, 1.0)
    rounding.same(lambda: likelihood.log_probs_and_entropy(*leaves, tokens), expected, unit=1.0)
    (log_probs.sum() + entropy.sum()).backward()
    assert all(torch.isfinite(x.grad).all() for x in leaves)


@pytest.mark.usefixtures("small_blocks")
def test_bf16_hidden_states_with_a_float32_head():
    (hidden, weight, bias), tokens, slopes = problem()
    rounded = hidden.detach().bfloat16().requires_grad_()
    log_probs, entropy = likelihood.log_probs_and_entropy(rounded, weight, bias, tokens)
    assert log_probs.dtype == entropy.dtype == torch.float32
    _, expected, _ = exact_values((hidden, weight, bias), tokens, 1.0)
    torch.testing.assert_close(log_probs.double(), expected, rtol=0.02, atol=0.1)
    (slopes[0].float() @ log_probs).backward()
    assert rounded.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32


def test_no_tokens_at_all():
    (hidden, weight, bias), tokens, _ = problem()
    log_probs, entropy = likelihood.log_probs_and_entropy(hidden[:0], weight, bias, tokens[:0])
    (log_probs.sum() + entropy.sum()).backward()
    assert log_probs.shape == entropy.shape == (0,)
    assert not weight.grad.any()


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements of a result."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


def test_logits_of_all_tokens_are_never_in_memory(monkeypatch):
    monkeypatch.setattr(likelihood, "CACHED", (16, 64))
    hidden = torch.randn(256, 4, requires_grad=True)
    weight = torch.randn(512, 4, requires_grad=True)
    tokens = torch.randint(512, (256,))
    with LargestTensor() as largest:
        log_probs, entropy = likelihood.log_probs_and_entropy(hidden, weight, None, tokens)
        (log_probs.sum() + entropy.sum()).backward()
    assert largest.numel == weight.numel()
    assert largest.numel < 256 * 512


class Passes(TorchDispatchMode):
    """Counts the operations that write a tensor of the shape of a block of logits."""

    def __init__(self, block):
        super().__init__()
        self.block, self.count = block, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        writes = "view" not in str(function) and "aten.t." not in str(function)
        if isinstance(result, torch.Tensor) and result.shape == self.block and writes:
            self.count += 1
        return result


@pytest.mark.parametrize(("kept", "writes"), [(0, 4), (4 * 16 * 64, 3)])
def test_a_block_of_logits_is_written_four_times_per_pass(monkeypatch, kept, writes):
    monkeypatch.setattr(likelihood, "CACHED", (16, 64))
    monkeypatch.setattr(likelihood, "KEPT", kept)
    hidden = torch.randn(16, 4, requires_grad=True)
    weight = torch.randn(64, 4, requires_grad=True)
    counts = []
    for with_entropy in (False, True):
        with Passes((16, 64)) as forward:
            outputs = likelihood.log_probs_and_entropy(
                hidden, weight, None, torch.randint(64, (16,))
            )
        with Passes((16, 64)) as backward:
            sum(x.sum() for x in outputs[: 1 + with_entropy]).backward()
        counts.append((forward.count, backward.count))
    # Forward: the product, minus the maximum, exp, times the logits. Backward: the product, unless
    # it was kept, minus logsumexp, exp, times the gradient.
    assert counts[0] == (4, writes)
    assert counts[1][1] > writes


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_kept_blocks_change_nothing_bit_for_bit(monkeypatch, temperature):
    monkeypatch.setattr(likelihood, "CACHED", (16, 64))
    hidden, weight = torch.randn(40, 4), torch.randn(200, 4)
    tokens, results = torch.randint(200, (40,)), []
    for kept in (0, 5 * 4 * 16 * 64, 2**20):  # none, five blocks of twelve, all
        monkeypatch.setattr(likelihood, "KEPT", kept)
        inputs = [x.clone().requires_grad_() for x in (hidden, weight)]
        outputs = likelihood.log_probs_and_entropy(*inputs, None, tokens, temperature=temperature)
        total = (outputs[0] * torch.arange(40)).sum() + outputs[1].sum()
        total.backward(retain_graph=True)
        total.backward()
        results.append([*outputs, *(x.grad for x in inputs)])
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))
