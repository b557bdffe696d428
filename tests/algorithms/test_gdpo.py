"""GDPO normalises each reward separately: compared with plain Python and with TRL's code."""

import ast
import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from groupwise import testing
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Scores
from groupwise_algorithms.gdpo import GDPO, normalise_then_sum

NAN = math.nan
GROUPS = torch.arange(4).repeat_interleave(4)


def rewards():
    """[16, 3]: different sizes, ties, a group without variance, missing values, an empty row."""
    torch.manual_seed(0)
    values = torch.stack(
        [torch.randint(0, 2, (16,)).double(), 40 + 9 * torch.randn(16), 0.01 * torch.rand(16)], 1
    ).double()
    values[4:8] = torch.tensor([1.0, 30.0, 0.5])
    values[2, 1] = values[9, 0] = NAN
    values[12:15, 2] = NAN  # one value of the group remains
    values[10] = NAN
    return values


def scores(values, weights=(1.0, 0.3, 2.0), **fields):
    return Scores(
        names=("right", "length", "style"),
        weights=weights,
        values=values,
        failed=fields.pop("failed", torch.zeros(len(values), dtype=torch.bool)),
        **fields,
    )


def expected_advantages(values, weights, epsilon):
    """The definition, one completion at a time, in Python floats."""

    def normalised(one, others):
        if len(others) < 2:
            return 0.0
        mean = math.fsum(others) / len(others)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in others) / (len(others) - 1))
        return (one - mean) / (std + epsilon)

    rows, sums = values.tolist(), {}
    for i, row in enumerate(rows):
        group = [other for j, other in enumerate(rows) if GROUPS[j] == GROUPS[i]]
        if all(map(math.isnan, row)):
            continue
        sums[i] = math.fsum(
            w * normalised(x, [o[k] for o in group if not math.isnan(o[k])])
            for k, (x, w) in enumerate(zip(row, weights, strict=True))
            if not math.isnan(x)
        )
    return [normalised(sums[i], [*sums.values()]) if i in sums else 0.0 for i in range(len(rows))]


def test_normalise_then_sum_matches_its_definition():
    weights = [1.0, -0.3, 2.0]
    result = normalise_then_sum(
        rewards(), GROUPS, weights=torch.tensor(weights, dtype=torch.float64), epsilon=1e-4
    )
    assert result.tolist() == pytest.approx(
        expected_advantages(rewards(), weights, 1e-4), abs=1e-12
    )
    assert result[4:8].tolist() == [0.0] * 4  # exactly 0, so no backward pass is needed
    assert result[10] == 0.0


def advantages_of_trl(values, weights, aggregation):
    """Advantages by TRL's code, cut out of a method of its trainer."""
    folder = Path(importlib.util.find_spec("trl").origin).parent / "trainer"
    helper = next(
        node
        for node in ast.parse((folder / "utils.py").read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "nanstd"
    )
    branch = next(
        node
        for node in ast.walk(ast.parse((folder / "grpo_trainer.py").read_text("utf-8")))
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "self.multi_objective_aggregation == 'sum_then_normalize'"
    )
    namespace = {
        "torch": torch,
        "self": SimpleNamespace(
            multi_objective_aggregation=aggregation,
            scale_rewards="group",
            reward_weights=weights,
            reward_funcs=[None] * values.shape[1],
        ),
        "device": "cpu",
        "num_generations": 4,
        "rewards_per_func": values,
        "unscorable_mask": values.isnan().all(dim=1),
    }
    exec(ast.unparse(helper) + "\n" + ast.unparse(branch), namespace)
    return namespace["advantages"].nan_to_num(nan=0.0)


@pytest.mark.parametrize(
    ("algorithm", "aggregation"), [(GDPO, "normalize_then_sum"), (GRPO, "sum_then_normalize")]
)
def test_advantages_equal_those_of_trl(algorithm, aggregation):
    values = rewards()
    expected = advantages_of_trl(values, torch.tensor([1.0, 0.3, 2.0]), aggregation)
    relative = algorithm().relative(scores(values), SimpleNamespace(groups=GROUPS))
    torch.testing.assert_close(relative, expected, rtol=1e-5, atol=1e-5)


def test_the_unit_and_bound_of_a_reward_do_not_matter_but_its_weight_does():
    values, rollouts = rewards(), SimpleNamespace(groups=GROUPS)
    algorithm = GDPO(GDPO.Config(epsilon=1e-12))
    relative = algorithm.relative(scores(values), rollouts)
    other_unit = values * torch.tensor([1.0, 1000.0, 1.0])
    bounded = scores(other_unit, scales=(1.0, 40.0, 1.0))
    torch.testing.assert_close(algorithm.relative(bounded, rollouts), relative)
    heavier = algorithm.relative(scores(values, (1.0, 3.0, 2.0)), rollouts)
    assert not torch.allclose(heavier, relative, atol=0.1)


def test_without_a_std_a_constrained_reward_is_divided_by_its_bound():
    values, rollouts = rewards(), SimpleNamespace(groups=GROUPS)
    algorithm = GDPO(GDPO.Config(scale="none"))
    bounded = scores(values * torch.tensor([1.0, 40.0, 1.0]), scales=(1.0, 40.0, 1.0))
    expected = algorithm.relative(scores(values), rollouts)
    torch.testing.assert_close(algorithm.relative(bounded, rollouts), expected)


def test_a_group_with_equal_totals_has_advantages_if_weights_differ():
    """Opposite rewards with weights 1 and 2 do not cancel once normalised; equal weights do."""
    groups = torch.zeros(4, dtype=torch.int64)
    rollouts = SimpleNamespace(groups=groups)

    def two_rewards(values, weights):
        return Scores(
            names=("a", "b"),
            weights=weights,
            values=torch.tensor(values, dtype=torch.float64),
            failed=torch.zeros(4, dtype=bool),
        )

    unequal = two_rewards([[0, 1], [2, 0], [0, 1], [2, 0]], (1.0, 2.0))
    assert GRPO().no_signal(unequal, rollouts).tolist() == [True] * 4
    assert GDPO().no_signal(unequal, rollouts).tolist() == [False] * 4
    cancelling = two_rewards([[0, 1], [1, 0], [0, 1], [1, 0]], (1.0, 1.0))
    assert not GDPO().relative(cancelling, rollouts).any()
    assert GDPO().no_signal(cancelling, rollouts).tolist() == [True] * 4


def test_a_group_is_dead_if_no_reward_with_a_weight_varies():
    values = torch.tensor([[1.0, 5.0, 3], [1.0, 6.0, 3], [1.0, 7.0, 3]], dtype=torch.float64)
    rollouts = SimpleNamespace(
        groups=torch.zeros(3, dtype=torch.int64), mask=torch.ones(3, 2, dtype=torch.bool)
    )
    assert GDPO().no_signal(scores(values), rollouts).tolist() == [False] * 3
    assert GDPO().no_signal(scores(values, (1.0, 0.0, 1.0)), rollouts).tolist() == [True] * 3
    failed = scores(values, failed=torch.tensor([False, True, True]))
    assert GDPO().no_signal(failed, rollouts).tolist() == [True] * 3
    steps = torch.tensor([[1.0, NAN], [2.0, NAN], [1.0, NAN]], dtype=torch.float64)
    varying_steps = scores(values, steps=steps, judges_steps=frozenset({"length"}))
    assert GDPO().no_signal(varying_steps, rollouts).tolist() == [False] * 3
    equal_steps = scores(values, steps=torch.ones_like(steps), judges_steps=frozenset({"length"}))
    assert GDPO().no_signal(equal_steps, rollouts).tolist() == [True] * 3


def test_a_completion_with_a_failed_reward_does_not_affect_the_others():
    values = torch.tensor([[1.0, 5.0, 3], [0.0, 6.0, 3], [9.0, 7.0, 3]], dtype=torch.float64)
    groups = torch.zeros(3, dtype=torch.int64)
    without_failed = GDPO().relative(scores(values[:2]), SimpleNamespace(groups=groups[:2]))
    failed = scores(values, failed=torch.tensor([False, False, True]))
    assert GDPO().relative(failed, SimpleNamespace(groups=groups)).tolist() == [
        *without_failed.tolist(),
        0.0,
    ]


def test_advantages_of_step_rewards_are_those_of_grpo_and_added(lab):
    policy = lab.Tabular(symbols=4)
    rollouts = policy.sample(lab.rows()[:2], group_size=2, seeds=[1, 2, 3, 4], purpose="train")
    steps = torch.full(rollouts.mask.shape, NAN, dtype=torch.float64)
    steps[:, 0] = torch.tensor([1.0, 2.0, 3.0, 5.0])
    values = torch.stack([torch.arange(4.0), torch.tensor([1.0, 2.0, 3.0, 5.0]), torch.zeros(4)], 1)
    judged = scores(values.double(), steps=steps, judges_steps=frozenset({"length"}))
    targets = GDPO().targets(judged, rollouts, {})["advantages"]
    outcome = GDPO().relative(judged, rollouts)
    by_steps = GRPO().targets(judged, rollouts, {})["advantages"]
    expected = outcome.unsqueeze(1) + by_steps - GRPO().relative(judged, rollouts).unsqueeze(1)
    torch.testing.assert_close(targets, expected.float())


def test_gdpo_satisfies_the_laws_of_algorithms():
    testing.check_algorithm(GDPO())
