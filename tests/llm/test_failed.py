"""A completion whose logits are not finite is a failed sample, and changes no other."""

import pytest
import torch

from groupwise_llm.decoding.slots import Slots


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"greedy": True}], ids=str)
@pytest.mark.parametrize("spoils", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_fail_their_completion_alone(
    make, rows, monkeypatch, options, spoils
):
    options = dict(options)
    purpose = "greedy" if options.pop("greedy", False) else "train"
    policy = make("llama", **options)
    seeds = range(len(rows) * 3)
    clean = policy.sample(rows, group_size=3, seeds=seeds, purpose=purpose)
    assert clean.failures is None
    choose = Slots.choose

    def spoiled(slots, decoder, raw):
        third = (slots.rows == 1) & (slots.length == 2)
        choose(slots, decoder, raw.masked_fill(third.unsqueeze(1), spoils))

    monkeypatch.setattr(Slots, "choose", spoiled)
    rollouts = policy.sample(rows, group_size=3, seeds=seeds, purpose=purpose)
    (broken,) = rollouts.failed.nonzero().flatten().tolist()
    assert "logits are not finite" in rollouts.failures[broken]
    assert int(rollouts.lengths[broken]) == 2
    assert rollouts.sampler_log_probs.isfinite().all()
    rest = [row for row in range(len(rollouts)) if row != broken]
    for row in rest:
        assert rollouts.facts["completion_ids"][row] == clean.facts["completion_ids"][row]


def test_all_completions_may_fail_at_once(make, rows):
    policy = make("llama")
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.fill_(float("nan"))
    rollouts = policy.sample(rows, group_size=2, seeds=range(2 * len(rows)))
    assert rollouts.failed.all()
    assert rollouts.mask.shape == (2 * len(rows), 0)
    assert len(rollouts.select([1, 0])) == 2
