"""Law 4: a sample's randomness is named by run seed, draw and index, and by nothing else."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from groupwise.prompts.draws import Prompts
from groupwise.prompts.seeds import seed_for
from groupwise.rollouts import Rollouts
from groupwise.training.sampling import Sampling


def sampled(policy, draws, *, batch=64, seed=3, space="train", size=3):
    return Rollouts.concat(parts(policy, draws, batch=batch, seed=seed, space=space, size=size))


def parts(policy, draws, *, batch, seed, space, size):
    sampling = Sampling(policy, policy, seed=seed, batch=batch)
    sampling.follow(None, 0)
    return list(sampling.draw(draws, size, space=space, purpose="train"))


def record(rollouts):
    """What was sampled under which name."""
    found = {}
    for row, text in enumerate(rollouts.completions):
        draw = int(rollouts.groups[row])
        index = sum(1 for group, _ in found if group == draw)
        real = rollouts.mask[row]
        found[draw, index] = (text, rollouts.sampler_log_probs[row][real].tolist())
    return found


@pytest.fixture
def draws(lab):
    return Prompts(lab.rows(), seed=3, fraction=0.0).take(6)


@pytest.mark.parametrize("batch", [1, 3, 4, 7, 18, 512])
def test_sample_batch_changes_nothing(lab, draws, batch):
    policy = lab.Tabular(symbols=4)
    assert record(sampled(policy, draws, batch=batch)) == record(sampled(policy, draws))


@pytest.mark.parametrize("batch", [1, 3, 4, 7])
def test_a_batch_is_not_exceeded_but_for_a_whole_group(lab, draws, batch):
    batches = parts(lab.Tabular(), draws, batch=batch, seed=0, space="train", size=3)
    sizes = [len(part) for part in batches]
    assert max(sizes) == max(3, batch // 3 * 3)
    assert sum(sizes) == 18


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_shares_of_processes_and_order_change_nothing(lab, draws, processes):
    policy = lab.Tabular(symbols=4)
    expected = record(sampled(policy, draws))
    shares = [sampled(policy, draws[rank::processes]) for rank in range(processes)]
    together = {}
    for share in shares:
        together |= record(share)
    assert together == expected
    assert record(sampled(policy, draws[::-1])) == expected


def test_groups_are_numbered_by_the_draw(lab, draws):
    rollouts = sampled(lab.Tabular(), draws[2:4])
    assert rollouts.groups.tolist() == [2, 2, 2, 3, 3, 3]
    twice = [draws[0], replace(draws[0], number=17)]
    texts = sampled(lab.Tabular(symbols=4), twice).completions
    assert texts[:3] != texts[3:]


def test_members_of_a_group_differ(lab, draws):
    rollouts = sampled(lab.Tabular(symbols=4), draws[:1], size=16)
    assert len(set(rollouts.completions)) > 4


def test_run_seed_and_name_space_matter(lab, draws):
    policy = lab.Tabular(symbols=4)
    base = sampled(policy, draws).completions
    assert base != sampled(policy, draws, seed=4).completions
    assert base != sampled(policy, draws, space="evaluation").completions


def test_training_and_evaluation_ask_for_different_seeds(lab):
    asked = {}

    class Nosy(lab.Tabular):
        def sample(self, prompts, *, group_size, seeds, purpose="train"):
            asked.setdefault(purpose, []).extend(seeds)
            return super().sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)

    trainer = lab.trainer(Nosy(), evaluation={"samples": 4, "prompts": 2})
    first = trainer.evaluate().samples
    for _ in range(3):
        lab.step(trainer)
    before = len(asked["evaluate"])
    trainer.evaluate()
    assert asked["evaluate"][before:] == asked["evaluate"][:before]
    assert not set(asked["train"]) & set(asked["evaluate"])
    assert len(set(asked["train"])) == len(asked["train"]) == 3 * 16
    assert {sample["prompt"] for sample in first} == {
        draw.row["prompt"] for draw in trainer.evaluator.draws
    }


def test_seed_for_has_no_collisions_and_fits():
    names = product((0, 1, 11, 111), ("train", "evaluation", "order"), range(250), range(40))
    seeds = {seed_for(*name) for name in names}
    assert len(seeds) == 4 * 3 * 250 * 40
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.Generator().manual_seed(max(seeds))


def test_seed_for_is_stable():
    """Changing it would silently change every run: this number may not move."""
    assert seed_for(1, "train", 2, 3) == 8573780293393194795
    assert seed_for(1, "train", 11, 1) != seed_for(1, "train", 1, 11)
