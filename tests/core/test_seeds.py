"""A sample depends only on its seed: a function of run seed, draw and index in the group."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from groupwise.prompts.seeds import seed_for
from groupwise.rollouts import Rollouts


def sample(lab, policy, draws, *, batch=64, seed=3, space="train", size=3):
    rollouts = parts(lab, policy, draws, batch=batch, seed=seed, space=space, size=size)
    return Rollouts.concat(rollouts)


def parts(lab, policy, draws, *, batch, seed, space, size):
    trainer = lab.trainer(policy, seed=seed, sample_batch=batch, group_size=size)
    sampler = trainer.experience.sampler
    sampler.follow({}, 0)
    drawn = sampler.evaluate("", draws, size, "train", space=space)
    return [episodes.judged for episodes in drawn]


def record(rollouts):
    """{(draw, index in the group): completion and log-probs}."""
    samples = {}
    for row, text in enumerate(rollouts.completions):
        draw = int(rollouts.groups[row])
        index = sum(1 for group, _ in samples if group == draw)
        mask = rollouts.mask[row]
        samples[draw, index] = (text, rollouts.sampler_log_probs[row][mask].tolist())
    return samples


@pytest.fixture
def draws(lab):
    return lab.Prompts(lab.rows(), seed=3, fraction=0.0).take(6)


@pytest.mark.parametrize("batch", [1, 3, 4, 7, 18, 512])
def test_the_size_of_sampling_batches_changes_nothing(lab, draws, batch):
    policy = lab.Tabular(symbols=4)
    assert record(sample(lab, policy, draws, batch=batch)) == record(sample(lab, policy, draws))


@pytest.mark.parametrize("batch", [1, 3, 4, 7])
def test_a_batch_is_larger_than_its_limit_only_for_one_whole_group(lab, draws, batch):
    batches = parts(lab, lab.Tabular(), draws, batch=batch, seed=0, space="train", size=3)
    sizes = [len(part) for part in batches]
    assert max(sizes) == max(3, batch // 3 * 3)
    assert sum(sizes) == 18


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_the_number_of_processes_and_the_order_of_draws_change_nothing(lab, draws, processes):
    policy = lab.Tabular(symbols=4)
    expected = record(sample(lab, policy, draws))
    shares = [sample(lab, policy, draws[rank::processes]) for rank in range(processes)]
    joined = {}
    for share in shares:
        joined |= record(share)
    assert joined == expected
    assert record(sample(lab, policy, draws[::-1])) == expected


def test_groups_are_numbered_by_the_draw(lab, draws):
    rollouts = sample(lab, lab.Tabular(), draws[2:4])
    assert rollouts.groups.tolist() == [2, 2, 2, 3, 3, 3]
    twice = [draws[0], replace(draws[0], number=17)]
    texts = sample(lab, lab.Tabular(symbols=4), twice).completions
    assert texts[:3] != texts[3:]


def test_completions_of_a_group_differ(lab, draws):
    rollouts = sample(lab, lab.Tabular(symbols=4), draws[:1], size=16)
    assert len(set(rollouts.completions)) > 4


def test_the_run_seed_and_the_purpose_change_the_samples(lab, draws):
    policy = lab.Tabular(symbols=4)
    completions = sample(lab, policy, draws).completions
    assert completions != sample(lab, policy, draws, seed=4).completions
    assert completions != sample(lab, policy, draws, space="evaluation").completions


def test_training_and_evaluation_have_different_seeds(lab):
    seeds_of = {}

    class Recording(lab.Tabular):
        def sample(self, prompts, *, group_size, seeds, purpose="train"):
            seeds_of.setdefault(purpose, []).extend(seeds)
            return super().sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)

    trainer = lab.trainer(Recording(), evaluation={"samples": 4, "prompts": 2})
    first = trainer.evaluate().samples
    for _ in range(3):
        lab.step(trainer)
    before = len(seeds_of["evaluate"])
    trainer.evaluate()
    assert seeds_of["evaluate"][before:] == seeds_of["evaluate"][:before]
    assert not set(seeds_of["train"]) & set(seeds_of["evaluate"])
    assert len(set(seeds_of["train"])) == len(seeds_of["train"]) == 3 * 16
    assert {sample["prompt"] for sample in first} == {
        draw.row["prompt"] for draw in trainer.evaluator.draws
    }


def test_seeds_have_no_collisions_and_fit_into_63_bits():
    names = product((0, 1, 11, 111), ("train", "evaluation", "order"), range(250), range(40))
    seeds = {seed_for(*name) for name in names}
    assert len(seeds) == 4 * 3 * 250 * 40
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.Generator().manual_seed(max(seeds))


def test_seeds_never_change_between_versions():
    """Another value here would change every run, so it must stay."""
    assert seed_for(1, "train", 2, 3) == 8573780293393194795
    assert seed_for(1, "train", 11, 1) != seed_for(1, "train", 1, 11)
