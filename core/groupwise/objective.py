"""From log-probs and advantages to a loss: pure functions, one per published form.

Every function takes and returns per-decision values [B, T], so that clips, KL and weights combine
freely, and a micro-batch is the same with fewer rows or columns.
"""

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from groupwise import moved

Normalize = Literal["sequence", "token", "constant"]
Estimator = Literal["k1", "k2", "k3"]
Level = Literal["token", "sequence"]
Mode = Literal["truncate", "mask"]


def token_log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """log rho = log_probs - old_log_probs where mask, else 0. All [B, T]."""
    # Masked before the exponential: padding holds arbitrary values, and inf * 0 is NaN.
    return (log_probs - old_log_probs).masked_fill(~mask, 0.0)


def sequence_log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """(1 / |o|) sum_t log rho_t, at all decisions of the row; GSPO, arXiv:2507.18071.

    All [B, T]. The importance ratio of a rollout is exp of it; rows without decisions give 0.
    """
    ratio = token_log_ratio(log_probs, old_log_probs, mask)
    mean = ratio.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return mean.expand_as(ratio).masked_fill(~mask, 0.0)


def clipped(
    log_ratio: Tensor, advantages: Tensor, *, low: float, high: float, cap: float | None = None
) -> Tensor:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), unweighted; PPO, arXiv:1707.06347, eq. 7.

    log_ratio: [B, T]; advantages: [B], or [B, T] where decisions of a rollout differ.
    low, high: the clip range below and above 1; DAPO (arXiv:2503.14476) takes high > low.
    cap: > 1 + high; the first rho becomes min(rho, cap). Where A < 0 the loss is unbounded without
        it. It is TRL's `delta`, the two-sided clip of INTELLECT-2 (arXiv:2505.07291), and verl's
        `clip_ratio_c`, the dual clip of arXiv:1912.09729: min(rho, delta) and max(., c A) are the
        same function.
    """
    advantages = per_decision(advantages)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - low, 1 + high)
    if cap is not None:
        ratio = ratio.clamp(max=cap)
    return -torch.minimum(ratio * advantages, bounded * advantages)


def is_clipped(
    log_ratio: Tensor, advantages: Tensor, *, low: float, high: float, cap: float | None = None
) -> Tensor:
    """[B, T] bool: the decisions whose gradient is 0 in `clipped`."""
    advantages = per_decision(advantages)
    ratio = log_ratio.exp()
    too_small = (ratio < 1 - low) if cap is None else (ratio < 1 - low) | (ratio > cap)
    return (too_small & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))


def guarded_log_ratio(
    log_ratio: Tensor, mean: Tensor, old_mean: Tensor, std: Tensor, mask: Tensor
) -> Tensor:
    """(log rho + |mean - old_mean|^2 / (2 std^2)) std; GRPO-Guard, arXiv:2510.22319, eq. 8.

    The log-ratio of two Gaussians of equal std has the mean -|mean - old_mean|^2 / (2 std^2) and a
    standard deviation proportional to 1 / std. The sum removes the mean, the factor the 1 / std.

    log_ratio, std, mask: [B, T]; mean, old_mean: [B, T, ...]. 0 outside the mask.
    """
    bias = gaussian_kl(mean, old_mean, std).masked_fill(~mask, 0.0)
    return (log_ratio + bias) * std


def gaussian_kl(mean: Tensor, other_mean: Tensor, std: Tensor) -> Tensor:
    """[B, T]: the exact KL of two Gaussians of equal std, |mean - other_mean|^2 / (2 std^2).

    mean, other_mean: [B, T, ...]; std: [B, T]. Averaged over the dimensions after T, as the
    log-probs of images are.
    """
    squares = (mean - other_mean).square()
    return (squares if squares.ndim == 2 else squares.flatten(2).mean(dim=2)) / (2 * std.square())


def kl(log_probs: Tensor, reference_log_probs: Tensor, *, estimator: Estimator = "k3") -> Tensor:
    """Per-decision estimate of KL(policy || reference) from samples of the policy, [B, T].

    With d = log_probs - reference_log_probs: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.
    k3 is in the loss of DeepSeekMath, eq. 4: its value is unbiased and never negative (Schulman,
    "Approximating KL Divergence", 2020). As a loss, only k2 has the gradient of the KL in
    expectation; the expected gradient of k1 is 0.
    """
    difference = log_probs - reference_log_probs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        # expm1, since exp(-d) - 1 loses digits near 0, where most decisions are.
        return torch.expm1(-difference) + difference
    raise ValueError(f'kl: estimator must be "k1", "k2" or "k3", received {estimator!r}')


def importance_weights(
    log_probs: Tensor,
    sampler_log_probs: Tensor,
    mask: Tensor,
    *,
    level: Level = "token",
    mode: Mode = "truncate",
    cap: float = 2.0,
    floor: float = 0.0,
) -> Tensor:
    """Bounded importance weights, policy / sampler.

    For rollouts that an engine or older weights drew; they multiply the surrogate, never KL or
    entropy. Truncated importance sampling: Yao et al., "Your Efficient RL Framework Secretly Brings
    You Off-Policy RL Training", 2025; masked on both sides, IcePop: Ling Team, "Every Step
    Evolves", arXiv:2510.18855, with the floor 0.5 and the cap 5.

    log_probs: [B, T] of the policy before the step's first update; sampler_log_probs: [B, T].
    level: "token": the ratio of each decision alone: biased, small variance; "sequence": the
        product over the rollout's decisions, repeated at each: unbiased where it is within the
        bounds.
    mode: "truncate": the weight, or the bound that it is beyond; "mask": 0 below the floor and
        above the cap. Masked decisions still count in the denominators of the loss.
    Returns [B, T] without gradient, 0 outside the mask.
    """
    ratio = token_log_ratio(log_probs.detach(), sampler_log_probs, mask)
    if level == "sequence":
        ratio = ratio.sum(dim=1, keepdim=True).expand_as(ratio)
    elif level != "token":
        raise ValueError(
            f'importance_weights: level must be "token" or "sequence", received {level!r}'
        )
    weights = ratio.exp()
    if mode == "truncate":
        weights = weights.clamp(floor, cap)
    elif mode == "mask":
        weights = weights.where((weights >= floor) & (weights <= cap), 0.0)
    else:
        raise ValueError(
            f'importance_weights: mode must be "truncate" or "mask", received {mode!r}'
        )
    return weights.masked_fill(~mask, 0.0)


def is_off_policy(
    log_probs: Tensor, sampler_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, limit: float
) -> Tensor:
    """[B, T] bool: A < 0 and (1 / |o|) sum_t log(sampler / policy) > limit, without gradient.

    The decisions that the off-policy sequence mask of DeepSeek-V3.2 leaves out, arXiv:2512.02556,
    eq. 9. The mean estimates KL(sampler || policy) of a completion, in nats per decision.
    log_probs, sampler_log_probs: [B, T]; advantages: [B] or [B, T]. False outside the mask.
    """
    far = -sequence_log_ratio(log_probs.detach(), sampler_log_probs, mask) > limit
    return far & (per_decision(advantages) < 0)


def weights(
    mask: Tensor,
    *,
    normalize: Normalize,
    length: int | None = None,
    episodes: Tensor | None = None,
) -> Tensor:
    """[B, T] float32: loss weights w, so that the loss of the update is sum(w x loss per decision).

    mask: [B, T] bool of the whole update. The denominators are thus known before micro-batches are
        cut, and the gradient does not depend on how they are cut.
    normalize: "sequence": 1 / (B x own length), GRPO; "token": 1 / all decisions, DAPO and BNPO;
        "constant": 1 / (B x length), Dr. GRPO, with `length` the longest completion allowed.
    episodes: [B] int64, as `Rollouts.episodes`: B is then the number of episodes, and a length
        that of all rollouts of an episode, so that it does not matter into how many it is cut.
    A rollout without decisions has weight 0 and still counts in B.
    """
    real = mask.to(torch.float32)
    rollouts, lengths = max(1, mask.shape[0]), real.sum(dim=1, keepdim=True)
    if episodes is not None:
        numbers, own = episodes.unique(return_inverse=True)
        rollouts = max(1, len(numbers))
        lengths = lengths.new_zeros(len(numbers), 1).index_add(0, own, lengths)[own]
    if normalize == "sequence":
        return real / (rollouts * lengths.clamp(min=1))
    if normalize == "token":
        return real / real.sum().clamp(min=1)
    if normalize == "constant":
        if length is None or length < 1:
            raise ValueError(
                f"weights: normalize='constant' needs a length >= 1, received {length}"
            )
        return real / (rollouts * length)
    raise ValueError(
        f'weights: normalize must be "sequence", "token" or "constant", received {normalize!r}'
    )


def high_entropy(entropy: Tensor, mask: Tensor, *, share: float) -> Tensor:
    """[B, T] bool: the decisions whose entropy is in the top `share` of all; arXiv:2506.01939.

    entropy: [B, T], of the distributions that decisions were drawn from; mask: [B, T] bool. Both of
    a whole update. At least one decision is chosen, and all that equal the least of those chosen.
    """
    values = entropy[mask]
    if not len(values):
        return mask
    # As many as are at or above the quantile 1 - share of n values: 1 + floor(share (n - 1)).
    count = 1 + int(share * (len(values) - 1))
    return mask & (entropy >= values.topk(count).values[-1])


def per_decision(advantages: Tensor) -> Tensor:
    """[B] -> [B, 1]; [B, T] is unchanged."""
    return advantages.unsqueeze(1) if advantages.ndim == 1 else advantages


if not TYPE_CHECKING:  # to a type checker, former names are missing
    __getattr__ = partial(moved.formula, __name__)
