"""`top_entropy_quantile`: only decisions of high entropy have an advantage."""

import math

import pytest
import torch
from pydantic import ValidationError

from groupwise import objective
from groupwise.algorithms.grpo import GRPO
from groupwise_algorithms.reinforce_pp import ReinforcePP

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()


@pytest.mark.parametrize("share", [0.01, 0.2, 0.25, 0.5, 0.9, 1.0])
def test_the_decisions_at_or_above_the_quantile_are_chosen(share):
    entropy = torch.rand(MASK.shape, generator=torch.Generator().manual_seed(0)).double()
    chosen = objective.high_entropy(entropy.masked_fill(~MASK, math.nan), MASK, share=share)
    quantile = entropy[MASK].quantile(1 - share)
    assert torch.equal(chosen, MASK & (entropy >= quantile - 1e-12))
    assert torch.equal(chosen, objective.high_entropy(10 * entropy - 3, MASK, share=share))


def test_equal_entropies_are_chosen_together_and_no_decision_is_no_error():
    equal = torch.full(MASK.shape, 0.7)
    assert torch.equal(objective.high_entropy(equal, MASK, share=0.1), MASK)
    none = torch.zeros_like(MASK)
    assert torch.equal(objective.high_entropy(equal, none, share=0.5), none)


def test_others_have_no_advantage_and_still_count_in_the_divisor(lab):
    rollouts = lab.build(lab.rows(1) * 4, [[1, 2, 0], [2, 0], [1, 1, 1, 2], [2, 2]], group_size=4)
    scores = lab.scores_of(torch.tensor([1.0, 0.0, 0.5, 0.5]))
    entropy = torch.arange(4.0) + 10 * torch.arange(4.0).unsqueeze(1)
    plain = GRPO().targets(scores, rollouts, {})
    algorithm = GRPO(GRPO.Config(top_entropy_quantile=0.55))
    targets = algorithm.targets(scores, rollouts, {"old_entropy": entropy})
    chosen = objective.high_entropy(entropy, rollouts.mask, share=0.55)
    assert 0 < int(chosen.sum()) < int(rollouts.mask.sum())
    assert torch.equal(targets["advantages"], plain["advantages"].unsqueeze(1) * chosen)
    assert torch.equal(targets["weights"], plain["weights"])
    # Rollouts in which no decision was chosen, or all have advantage 0, need no backward pass.
    assert algorithm.active(targets).tolist() == [
        bool(row.any()) and bool(advantage)
        for row, advantage in zip(chosen, plain["advantages"], strict=True)
    ]


class Recording(GRPO):
    """Keeps what `targets` receives."""

    def __init__(self, **options):
        super().__init__(GRPO.Config(**options))
        self.seen = []

    def targets(self, scores, rollouts, inputs):
        self.seen.append((inputs["old_entropy"], rollouts.mask))
        return super().targets(scores, rollouts, inputs)


@pytest.mark.parametrize("updates", [1, 3])
def test_entropies_are_those_before_the_first_update_over_a_whole_update(lab, updates):
    """Whatever the micro-batch: those of 1 and 10,000 decisions choose the same."""
    results = []
    for budget in (1, 10_000):
        algorithm = Recording(top_entropy_quantile=0.5)
        trainer = lab.trainer(
            lab.Tabular(seed=1),
            algorithm,
            steps=1,
            groups_per_step=3,
            updates_per_rollout=updates,
            microbatch=budget,
            learning_rate=0.3,
        )
        every = trainer.policy.table.detach().log_softmax(dim=-1)
        possible = -(every.exp() * every).sum(dim=-1).flatten()
        lab.step(trainer)
        assert len(algorithm.seen) == updates
        for entropy, mask in algorithm.seen:
            assert entropy[mask].min() < entropy[mask].max()
            gaps = (entropy[mask].unsqueeze(1) - possible).abs().amin(dim=1)
            assert float(gaps.max()) < 1e-12
        results.append(trainer.policy.table.detach().clone())
    assert lab.gap(results[0], results[1]) < 1e-10
    assert lab.gap(results[0], lab.Tabular(seed=1).table.detach()) > 1e-3


def test_it_adds_to_what_the_advantages_read_already():
    algorithm = ReinforcePP(ReinforcePP.Config(beta=0.1, top_entropy_quantile=0.2))
    assert algorithm.target_inputs == {"old_entropy", "old_log_probs", "reference_log_probs"}
    assert algorithm.outputs == {"log_probs", "entropy"}
    assert not GRPO(GRPO.Config(top_entropy_quantile=1.0)).target_inputs


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_the_share_is_above_0_and_at_most_1(share):
    with pytest.raises(ValidationError, match="top_entropy_quantile"):
        GRPO.Config(top_entropy_quantile=share)
