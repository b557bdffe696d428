"""The formulas, against plain loops in float64."""

import math

import pytest
import torch
from groupwise_ppo.estimates import at_the_end, gae, value_loss, whitened
from torch import Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 1],  # a tool answered in between
        [1, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)


def gae_by_sums(
    rewards: list[float], values: list[float], gamma: float, decay: float
) -> list[float]:
    """A_t = sum over l of (gamma decay)^l delta_t+l, of one rollout's decisions alone."""
    after = [*values, 0.0][1:]
    deltas = [r + gamma * v_next - v for r, v_next, v in zip(rewards, after, values, strict=True)]
    return [
        math.fsum((gamma * decay) ** (s - t) * deltas[s] for s in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@pytest.mark.parametrize(("gamma", "decay"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.99, 0.0)])
def test_gae(gamma: float, decay: float) -> None:
    rewards, values = draw(5, 6), draw(5, 6, seed=1)
    rewards[~MASK], values[~MASK] = 99.0, torch.inf  # places outside the mask must have no effect
    result = gae(rewards.masked_fill(~MASK, 0.0), values, MASK, gamma=gamma, decay=decay)
    assert torch.equal(result[~MASK], torch.zeros(int((~MASK).sum()), dtype=torch.float64))
    for row, mask in enumerate(MASK):
        expected = gae_by_sums(
            rewards[row, mask].tolist(), values[row, mask].tolist(), gamma, decay
        )
        assert result[row, mask].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_gae_of_lambda_one_is_the_reward_less_the_value() -> None:
    values, ends = draw(5, 6), torch.tensor([1.0, 0.0, 2.0, -1.0, 5.0], dtype=torch.float64)
    result = gae(at_the_end(ends, MASK), values, MASK, gamma=1.0, decay=1.0)
    expected = (ends.unsqueeze(1) - values).masked_fill(~MASK, 0.0)
    torch.testing.assert_close(result, expected)


def test_rewards_stand_at_the_last_decision() -> None:
    rewards = at_the_end(torch.arange(1.0, 6.0), MASK)
    places = [(0, 5), (1, 5), (2, 0), (3, 4)]
    assert rewards.nonzero().tolist() == [list(place) for place in places]
    assert [float(rewards[place]) for place in places] == [1.0, 2.0, 3.0, 4.0]


def test_whitened() -> None:
    better, groups = draw(5, 6) * 3 + 1, torch.tensor([4, 4, 7, 7, 9])
    assert whitened(better, MASK, groups, scale="none") is better
    batch = whitened(better, MASK, groups, scale="batch")
    assert float(batch[MASK].mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(batch[MASK].std()) == pytest.approx(1.0, abs=1e-6)
    group = whitened(better, MASK, groups, scale="group")
    for number in (4, 7):
        chosen = MASK & (groups == number).unsqueeze(1)
        expected = (better[chosen] - better[chosen].mean()) / better[chosen].std()
        torch.testing.assert_close(group[chosen], expected)
    assert not group[~MASK].any()


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_loss(clip: float | None) -> None:
    values, old, returns = draw(4, 5), draw(4, 5, seed=1), draw(4, 5, seed=2)
    result = value_loss(values, old, returns, clip=clip)
    for place in torch.cartesian_prod(torch.arange(4), torch.arange(5)).tolist():
        value, before, aim = (float(x[tuple(place)]) for x in (values, old, returns))
        error = (value - aim) ** 2
        if clip is not None:
            error = max(error, (min(max(value, before - clip), before + clip) - aim) ** 2)
        assert float(result[tuple(place)]) == pytest.approx(error / 2, rel=1e-12)


def test_a_value_that_went_too_far_goes_no_further() -> None:
    """With an old value of 0, a clip of 0.2: gradients of values on the way to their returns."""
    values = torch.tensor([[0.1, 0.5, 0.5, -0.5]], requires_grad=True)
    returns = torch.tensor([[1.0, 1.0, -1.0, 1.0]])
    value_loss(values, torch.zeros(1, 4), returns, clip=0.2).sum().backward()
    assert values.grad is not None
    # Near, so it moves; too far, so it stays; too far the wrong way, so it comes back, twice.
    torch.testing.assert_close(values.grad, torch.tensor([[-0.9, 0.0, 1.5, -1.5]]))
