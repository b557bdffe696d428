"""PPO and Hybrid GRPO: Groupwise's own laws, and the loss against a second implementation."""

import math

import pytest
import torch
from groupwise_ppo.hybrid import HybridGRPO
from groupwise_ppo.ppo import PPO
from test_estimates import gae_by_sums

from groupwise import LogProbs, Rollouts, testing
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Scores

MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
GROUPS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(),
        PPO(PPO.Config(scale="group", value_lambda=1.0, value_clip=None, beta=0.1, entropy=0.01)),
        PPO(PPO.Config(scale="none", normalize="sequence", mask_truncated=True, gae_lambda=0.9)),
        HybridGRPO(),
        HybridGRPO(HybridGRPO.Config(gae_lambda=0.5, importance="none")),
    ],
)
def test_laws(algorithm: PPO) -> None:
    testing.check_algorithm(algorithm)


def scored(values: list[float], steps: torch.Tensor | None = None) -> tuple[Scores, Rollouts]:
    size = len(values)
    names = ("outcome",) if steps is None else ("outcome", "process")
    columns = [torch.tensor(values, dtype=torch.float64)]
    if steps is not None:
        columns.append(steps.nansum(dim=1))
    scores = Scores(
        names=names,
        weights=(1.0,) * len(names),
        values=torch.stack(columns, dim=1),
        failed=torch.zeros(size, dtype=torch.bool),
        steps=steps,
        judges_steps=frozenset(names[1:]),
    )
    return scores, Rollouts(
        prompts=[{"prompt": "x"}] * size,
        completions=[None] * size,
        groups=GROUPS,
        mask=MASK,
        truncated=torch.zeros(size, dtype=torch.bool),
    )


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def restated(algorithm: PPO, ends: list[float], *, whiten: bool) -> float:
    """The loss of an update, in plain Python numbers."""
    config = algorithm.config
    log_probs, old, values, old_values = (numbers(seed).tolist() for seed in range(4))
    decisions = [tuple(place) for place in MASK.nonzero().tolist()]
    better: dict[tuple[int, int], float] = {}
    for b in range(4):
        places = [t for row, t in decisions if row == b]
        rewards = [0.0] * (len(places) - 1) + [ends[b]]
        of_row = gae_by_sums(rewards, [old_values[b][t] for t in places], 1.0, config.gae_lambda)
        better |= {(b, t): value for t, value in zip(places, of_row, strict=True)}
    returns = {(b, t): better[b, t] + old_values[b][t] for b, t in decisions}
    if whiten:
        mean = math.fsum(better.values()) / len(better)
        std = math.sqrt(math.fsum((a - mean) ** 2 for a in better.values()) / (len(better) - 1))
        better = {place: (a - mean) / std for place, a in better.items()}
    loss = 0.0
    for b, t in decisions:
        ratio, a = math.exp(log_probs[b][t] - old[b][t]), better[b, t]
        policy = -min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        near = min(max(values[b][t], old_values[b][t] - 0.2), old_values[b][t] + 0.2)
        aim = returns[b, t]
        value = max((values[b][t] - aim) ** 2, (near - aim) ** 2) / 2
        loss += (policy + config.value_weight * value) / len(decisions)
    return loss


def loss_of(algorithm: PPO, ends: list[float]) -> torch.Tensor:
    log_probs, old, values, old_values = (numbers(seed) for seed in range(4))
    targets = algorithm.targets(*scored(ends), {"old_value": old_values})
    batch = {**targets, "mask": MASK, "old_log_probs": old, "old_value": old_values}
    return algorithm.loss(LogProbs(log_probs=log_probs, extra={"value": values}), batch).sum()


def test_ppo_is_its_formula() -> None:
    ends = [1.0, 0.0, 0.3, 1.1]
    algorithm = PPO(PPO.Config(gae_lambda=0.95))
    expected = restated(algorithm, ends, whiten=True)
    assert float(loss_of(algorithm, ends)) == pytest.approx(expected, rel=1e-6)


def test_hybrid_is_its_formula() -> None:
    """Rewards relative to their group, and no whitening."""
    hybrid, ends = HybridGRPO(HybridGRPO.Config(value_lambda=None)), [1.0, 0.0, 0.3, 1.1]
    std = math.sqrt(2) / 2  # of two numbers, a share of their difference
    relative = [(0.5) / (std + 1e-4), -0.5 / (std + 1e-4)]
    relative += [-0.4 / (0.8 * std + 1e-4), 0.4 / (0.8 * std + 1e-4)]
    expected = restated(hybrid, relative, whiten=False)
    assert float(loss_of(hybrid, ends)) == pytest.approx(expected, rel=1e-6)


def test_hybrid_with_a_critic_that_says_nothing_is_grpo() -> None:
    scores, rollouts = scored([1.0, 0.0, 0.3, 1.1])
    nothing = {"old_value": torch.zeros(4, 4, dtype=torch.float64)}
    hybrid = HybridGRPO(HybridGRPO.Config(gae_lambda=1.0)).targets(scores, rollouts, nothing)
    grpo = GRPO(GRPO.Config(normalize="token")).targets(scores, rollouts, {})
    expected = grpo["advantages"].unsqueeze(1).expand(4, 4).masked_fill(~MASK, 0.0)
    torch.testing.assert_close(hybrid["advantages"], expected)
    assert torch.equal(hybrid["weights"], grpo["weights"])


def test_rewards_of_steps_stand_where_steps_end() -> None:
    nan = math.nan
    steps = torch.tensor([[nan, 0.5, nan], [0.25, nan, nan], [nan] * 3, [nan] * 3]).double()
    scores, rollouts = scored([1.0, 2.0, nan, nan], steps)
    rewards = PPO().rewards(scores, rollouts)
    assert rewards.tolist() == [[0, 0.5, 0, 1.0], [0.25, 0, 2.0, 0], [0] * 4, [0] * 4]


def test_what_no_reward_applies_to_weighs_nothing() -> None:
    scores, rollouts = scored([1.0, math.nan, 0.0, 1.0])
    targets = PPO().targets(scores, rollouts, {"old_value": numbers(0)})
    assert targets["weights"][1].tolist() == [0.0] * 4
    # The weights of the others do not change: 1 / all decisions of the update.
    assert float(targets["weights"].sum()) == pytest.approx(9 / 11)
    assert not PPO().active(targets)[1]


def test_the_critic_learns_from_an_advantage_of_nothing() -> None:
    scores, rollouts = scored([0.0] * 4)
    targets = PPO().targets(scores, rollouts, {"old_value": torch.zeros(4, 4).double()})
    assert not targets["advantages"].any()
    assert PPO().active(targets).all()


def test_a_group_of_equal_rewards_is_not_dead() -> None:
    scores, rollouts = scored([1.0, 1.0, math.nan, math.nan])
    assert GRPO().no_signal(scores, rollouts).all()
    assert PPO().no_signal(scores, rollouts).tolist() == [False, False, True, True]


def test_value_lambda_is_the_critics_alone() -> None:
    scores, rollouts = scored([1.0, 0.0, 0.3, 1.1])
    inputs = {"old_value": numbers(0)}
    one, other = (
        PPO(PPO.Config(gae_lambda=0.5, value_lambda=value)).targets(scores, rollouts, inputs)
        for value in (None, 1.0)
    )
    assert torch.equal(one["advantages"], other["advantages"])
    ends = torch.tensor([1.0, 0.0, 0.3, 1.1]).unsqueeze(1).expand(4, 4)
    torch.testing.assert_close(other["returns"][MASK], ends[MASK])
    assert not torch.allclose(one["returns"], other["returns"])
