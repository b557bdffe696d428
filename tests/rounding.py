"""How far two ways of computing the same may lie apart by rounding, computed where it is needed.

Processors add in different orders and have their own exp and sin, so that a difference seen on one
of them is no bound for another. Monte Carlo arithmetic (Parker, 1997) estimates it: the computation
is repeated while the operands of such operations, backward passes included, are moved at random by
up to one unit in their last place. That needs no copy in float64, and takes in how the result
depends on them: a difference of large numbers, or a division by a small one.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MARGIN = 6.0
"""Allowed is this many times what trials show: sums of n terms in another order lie apart by up to
about √n/3 times as much, so that this is for some 300 terms."""
TRIALS = 2
WRONG = 0.1
"""A result that is wrong by this share must fail: a bound that would allow it is refused."""
SUMS = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear"),
    "_grouped_mm",
    *("convolution", "convolution_backward", "sum", "mean", "var", "var_mean", "std", "std_mean"),
    *("cumsum", "prod", "cumprod", "logsumexp", "logcumsumexp", "linalg_vector_norm", "norm"),
    *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
    *("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm"),
    *("native_group_norm", "native_group_norm_backward", "_fused_rms_norm_backward"),
    *("embedding_dense_backward", "index_add", "scatter_add", "upsample_bilinear2d"),
    *("_upsample_bilinear2d_aa", "upsample_bicubic2d", "_upsample_bicubic2d_aa", "avg_pool2d"),
)
FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "log2", "logaddexp", "sin", "cos", "tanh", "tanh_backward"),
    *("sigmoid", "sigmoid_backward", "silu", "silu_backward", "gelu", "gelu_backward", "erf"),
    *("softplus", "softplus_backward", "log_sigmoid_forward", "log_sigmoid_backward", "pow"),
    *("rsqrt", "_foreach_norm"),
)
SHARES = 2 * torch.rand(2**18, generator=torch.Generator().manual_seed(0)) - 1
"""By which share of a unit numbers are moved; drawn once, since each operand takes many."""
ATTENTION = "_scaled_dot_product"  # of several kernels
ROUNDED = {f"aten::{name}" for name in (*SUMS, *FUNCTIONS)}
"""Operations whose result IEEE 754 leaves to the processor, other than additions, products, ..."""


class Moved(TorchDispatchMode):
    """A context in which operands of `ROUNDED` are moved by up to one unit in their last place."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draws = Random(seed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and each operation would pay for the guard

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if _is_rounded(func):
            args = [self._moved(value) for value in args]
        return func(*args, **(kwargs or {}))

    def _moved(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._moved(each) for each in value]
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta:
            return value
        if value.equal(value.round()):
            return value  # sums of whole numbers, such as counts, are exact
        units, size = _units(value.dtype), value.numel()
        start = self.draws.randrange(len(units))
        units = units.roll(-start) if size > len(units) - start else units[start:]
        if size > len(units):
            units = units.repeat(-(-size // len(units)))
        moved = torch.addcmul(value, value, units[:size].view(value.shape).to(value.device))
        if math.isfinite(moved.sum()):
            return moved
        return moved.where(value.isfinite(), value)  # masks hold infinity


@cache
def _units(dtype: torch.dtype) -> Tensor:
    """`SHARES` of the unit in the last place of 1."""
    return (SHARES * torch.finfo(dtype).eps).to(dtype)


@cache
def _is_rounded(func: Any) -> bool:
    name = func._schema.name
    return not func._schema.is_mutable and (name in ROUNDED or ATTENTION in name)


def bounds(
    compute: Callable[[], Any],
    *,
    result: Any = None,
    unit: float = 0.0,
    digits: int | None = None,
) -> list[float]:
    """How far each tensor or number of a result may lie from another computation of it.

    compute: gives the result, a tensor, a number or a nest of them, the same at each call.
    result: what it gave before, if it takes long.
    unit: the least size of what is compared, for a sum whose terms, of this size, may cancel.
    digits: significant digits of numbers, where they are fewer than a float's, as in logs.
    """
    return _bounds(compute() if result is None else result, compute, unit, digits)


def same(
    compute: Callable[[], Any], *others: Any, unit: float = 0.0, digits: int | None = None
) -> None:
    """Asserts that the others are what `compute` gives, but for rounding; see `bounds`."""
    result = compute()
    allowed = _bounds(result, compute, unit, digits)
    for other in others:
        share = excess(result, other, allowed)
        assert share <= 1, f"the difference is {share:.3g} times what rounding explains: {allowed}"


def ratio_bound(policy: Any, row: dict[str, Any]) -> float:
    """How far the log-probs of a policy's rollouts may lie from those of the sampler by rounding:
    a bound for `mismatch/max` of a run's steps.

    row: a row of prompts, of which rollouts are sampled.
    """
    rollouts = policy.sample([row], group_size=4, seeds=range(4))
    with torch.no_grad():
        (bound,) = bounds(lambda: policy(rollouts).log_probs * rollouts.mask)
    return bound


def _bounds(
    result: Any, compute: Callable[[], Any], unit: float, digits: int | None
) -> list[float]:
    plain = [_double(value).clone() for value in tree_leaves(result)]
    sizes = [max(unit, _size(value)) for value in plain]
    errors = [_eps(value) * size for value, size in zip(tree_leaves(result), sizes, strict=True)]
    if digits:
        errors = [
            max(old, 10 ** (1 - digits) * _size(v)) for old, v in zip(errors, plain, strict=True)
        ]
    for trial in range(TRIALS):
        with Moved(trial):
            moved = tree_leaves(compute())
        errors = [max(old, _gap(*pair)) for old, *pair in zip(errors, moved, plain, strict=True)]
    for error, size in zip(errors, sizes, strict=True):
        assert MARGIN * error <= WRONG * size, f"rounding explains {error:.3g} of {size:.3g}"
    return [MARGIN * error for error in errors]


def excess(one: Any, other: Any, allowed: Sequence[float]) -> float:
    """The largest difference of two results, as a share of what `bounds` allows for it."""
    pairs = zip(tree_leaves(one), tree_leaves(other), allowed, strict=True)
    return max(_share(_gap(a, b), bound) for a, b, bound in pairs)


def _share(gap: float, bound: float) -> float:
    return gap / bound if gap else 0.0


def _gap(one: Any, other: Any) -> float:
    one, other = _double(one), _double(other)
    assert one.shape == other.shape, f"{list(one.shape)} and {list(other.shape)}"
    return _size(one - other)


def _size(value: Any) -> float:
    values = _double(value)
    return float(values.abs().max()) if values.numel() else 0.0


def _double(value: Any) -> Tensor:
    return torch.as_tensor(value).detach().double().cpu()


def _eps(value: Any) -> float:
    dtype = value.dtype if isinstance(value, Tensor) else torch.float32
    return torch.finfo(dtype).eps


def needs_attention(dtype: torch.dtype) -> None:
    """Skip a test of attention in half precision where torch has none: its kernel for processors
    with AMX fails if `ATEN_CPU_CAPABILITY` allows fewer instructions than it needs."""
    states = torch.zeros(1, 1, 64, 16, dtype=dtype)
    try:
        torch.nn.functional.scaled_dot_product_attention(states, states, states)
    except RuntimeError as error:
        pytest.skip(str(error))
