"""What Groupwise expects of any policy. Copy this file for yours: little in it is about pushes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from groupwise_controller.algorithm import RLOO
from groupwise_controller.policy import Controller
from groupwise_controller.world import ARENA, RADIUS
from safetensors.torch import load_model
from torch import Tensor

from groupwise import Rollouts, objective

Rows = list[dict[str, Any]]


def sampled(policy: Controller, rows: Rows, first_seed: int = 0, **options: Any) -> Rollouts:
    size = options.setdefault("group_size", 4)
    seeds = list(range(first_seed, first_seed + len(rows) * size))
    with torch.no_grad():
        return policy.sample(rows, seeds=seeds, **options)


def log_probs(policy: Controller, rollouts: Rollouts) -> Tensor:
    found = policy(rollouts).log_probs
    assert found is not None
    return found


# ---- ratio one: what the sampler said is what the forward pass says


def test_ratio_is_one_after_sampling(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows)
    assert rollouts.sampler_log_probs is not None
    ratio = (log_probs(policy, rollouts) - rollouts.sampler_log_probs).exp()
    assert (ratio - 1)[rollouts.mask].abs().max() < 1e-5


def test_ratio_is_not_one_after_an_update(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows)
    before = log_probs(policy, rollouts)
    with torch.no_grad():
        policy.log_std += 0.1
    assert (log_probs(policy, rollouts) - before)[rollouts.mask].abs().max() > 0.01


def test_log_probs_are_the_normal_density(policy: Controller, rows: Rows) -> None:
    """Restated in float64, from what the policy put on record."""
    policy.double()
    rollouts = sampled(policy, rows)
    actions, observations = rollouts.trajectory["actions"], rollouts.trajectory["observations"]
    std = policy.log_std.exp()
    z = (actions - policy.network(observations)) / std
    density = (-z.square() / 2 - std.log() - math.log(2 * math.pi) / 2).sum(dim=-1)
    answer = policy(rollouts)
    torch.testing.assert_close(answer.log_probs, density)
    entropy = (std.log() + (1 + math.log(2 * math.pi)) / 2).sum()
    torch.testing.assert_close(answer.entropy, entropy.expand_as(density))


# ---- seeds: they name samples, whatever is sampled beside them


def test_a_rollout_depends_on_its_own_seed_only(policy: Controller, rows: Rows) -> None:
    together = sampled(policy, rows)
    for number, row in enumerate(rows):
        alone = sampled(policy, [row], first_seed=4 * number)
        expected = together.select(range(4 * number, 4 * number + 4))
        assert alone.mask.tolist() == expected.mask.tolist()
        torch.testing.assert_close(alone.trajectory["actions"], expected.trajectory["actions"])


def test_other_seeds_give_other_rollouts(policy: Controller, rows: Rows) -> None:
    one, other = sampled(policy, rows), sampled(policy, rows, first_seed=1000)
    assert all(a != b for a, b in zip(one.completions, other.completions, strict=True))


def test_the_global_generator_is_left_alone(policy: Controller, rows: Rows) -> None:
    before = torch.get_rng_state()
    sampled(policy, rows)
    Controller()
    assert torch.equal(torch.get_rng_state(), before)


def test_greedy_takes_the_mean(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows, purpose="greedy")
    mean = policy.network(rollouts.trajectory["observations"])
    torch.testing.assert_close(rollouts.trajectory["actions"], mean)
    torch.testing.assert_close(*(rollouts.trajectory["actions"][row] for row in (0, 3)))


# ---- the mask: real decisions, and nothing but them


def test_mask_and_truncated_tell_how_a_rollout_ended(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows)
    assert rollouts.groups.tolist() == [g for g in range(len(rows)) for _ in range(4)]
    assert len(rollouts.lengths.unique()) > 3
    assert rollouts.truncated.any()
    for number, completion in enumerate(rollouts.completions):
        length = int(rollouts.lengths[number])
        assert rollouts.mask[number].tolist() == [t < length for t in range(rollouts.mask.shape[1])]
        assert (len(completion["pushes"]), len(completion["path"])) == (length, length + 1)
        ended = [
            math.dist(point, rollouts.prompts[number]["goal"]) <= RADIUS
            or max(map(abs, point)) > ARENA
            for point in completion["path"][1:]
        ]
        assert not any(ended[:-1])
        assert ended[-1] != bool(rollouts.truncated[number])
        assert ended[-1] or length == policy.max_decisions


def test_what_stands_behind_the_mask_is_finite_and_does_not_matter(
    policy: Controller, rows: Rows
) -> None:
    rollouts = sampled(policy, rows)
    behind = ~rollouts.mask.unsqueeze(-1)
    other = {name: value.masked_fill(behind, 7.0) for name, value in rollouts.trajectory.items()}
    before, after = (
        log_probs(policy, rollouts),
        log_probs(policy, replace(rollouts, trajectory=other)),
    )
    assert before.isfinite().all()
    assert torch.equal(before[rollouts.mask], after[rollouts.mask])


def test_select_and_concat_lose_nothing(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows)
    halves = [rollouts.select(range(24)), rollouts.select(range(24, 48))]
    again = Rollouts.concat(halves)
    assert torch.equal(again.mask, rollouts.mask)
    torch.testing.assert_close(
        log_probs(policy, again)[again.mask], log_probs(policy, rollouts)[rollouts.mask]
    )


# ---- micro-batches: cutting an update into parts changes no gradient


@pytest.mark.parametrize("budget", [1, 50, 300])
def test_the_gradient_is_the_same_however_it_is_cut(
    policy: Controller, rows: Rows, budget: int
) -> None:
    policy.double()
    rollouts = sampled(policy, rows)
    batch = {
        "advantages": torch.linspace(-1, 1, len(rollouts), dtype=torch.float64),
        "weights": objective.weights(rollouts.mask, normalize="sequence").double(),
        "old_log_probs": log_probs(policy, rollouts).detach() + 0.1,
        "mask": rollouts.mask,
    }

    def gradient(parts: Any) -> Tensor:
        policy.zero_grad()
        for part, decisions in parts:
            chosen = {
                name: value[part] if value.ndim == 1 else value[part][:, decisions]
                for name, value in batch.items()
            }
            RLOO().loss(policy(rollouts.select(part), decisions), chosen).sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])

    whole = gradient([(torch.arange(len(rollouts)), slice(0, rollouts.mask.shape[1]))])
    assert whole.norm() > 0
    cut = gradient(policy.microbatches(rollouts, budget, cut_decisions=True))
    assert (cut - whole).norm() / whole.norm() < 1e-10
    # Decisions are independent given what was seen, so they may even be cut apart.
    row = [torch.tensor([number]) for number in range(len(rollouts))]
    pieces = [
        (one, slice(start, min(start + 5, int(rollouts.lengths[number]))))
        for number, one in enumerate(row)
        for start in range(0, int(rollouts.lengths[number]), 5)
    ]
    assert (gradient(pieces) - whole).norm() / whole.norm() < 1e-10


# ---- weights: kept, used, saved


def test_reference_answers_with_the_kept_weights(policy: Controller, rows: Rows) -> None:
    rollouts = sampled(policy, rows)
    first = log_probs(policy, rollouts)
    policy.keep("reference")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    trained = log_probs(policy, rollouts)
    with policy.using("reference"):
        assert torch.equal(log_probs(policy, rollouts), first)
    assert torch.equal(log_probs(policy, rollouts), trained)
    assert not torch.equal(first, trained)


def test_weights_that_were_not_kept(policy: Controller) -> None:
    with pytest.raises(ValueError, match="keeps no 'ema' weights"), policy.using("ema"):
        pass


def test_the_reference_is_not_trained(policy: Controller) -> None:
    count = len(list(policy.parameters()))
    policy.keep("reference")
    assert len(list(policy.parameters())) == count


def test_saved_weights_load(policy: Controller, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path / "model")
    other = Controller(Controller.Config(horizon=24, hidden=8, seed=1))
    load_model(other, str(tmp_path / "model" / "model.safetensors"))
    for name, value in policy.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
