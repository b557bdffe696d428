"""A sample depends only on its seed: a function of run seed, draw and index in the group."""

import random
from itertools import product

import pytest
import torch

from groupwise.prompts.seeds import seed_for
from groupwise.registry import installed
from groupwise.testing import play_episodes


def sample(policy, rows, *, batch=64, seed=3, purpose="train", size=3):
    """Of rows by the numbers of their draws."""
    single = installed().load("environments", "single")()
    options = {"size": size, "batch": batch, "seed": seed, "purpose": purpose}
    return play_episodes(single, {"policy": policy}, rows, **options).rollouts("policy")


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
    return dict(enumerate(random.Random(3).sample(lab.rows(), 6)))


@pytest.mark.parametrize("batch", [1, 3, 4, 7, 18, 512])
def test_the_size_of_sampling_batches_changes_nothing(lab, draws, batch):
    policy = lab.Tabular(symbols=4)
    assert record(sample(policy, draws, batch=batch)) == record(sample(policy, draws))


@pytest.mark.parametrize("batch", [1, 3, 4, 7])
def test_a_batch_is_larger_than_its_limit_only_for_one_whole_group(lab, draws, batch):
    sizes = []

    class Counting(lab.Tabular):
        def sample(self, *args, **options):
            rollouts = super().sample(*args, **options)
            sizes.append(len(rollouts))
            return rollouts

    sample(Counting(), draws, batch=batch)
    assert max(sizes) == max(3, batch // 3 * 3)
    assert sum(sizes) == 18


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_the_number_of_processes_and_the_order_of_draws_change_nothing(lab, draws, processes):
    policy = lab.Tabular(symbols=4)
    expected = record(sample(policy, draws))
    joined = {}
    for rank in range(processes):
        share = dict([*draws.items()][rank::processes])
        joined |= record(sample(policy, share))
    assert joined == expected
    assert record(sample(policy, dict(reversed(draws.items())))) == expected


def test_groups_are_numbered_by_the_draw(lab, draws):
    rollouts = sample(lab.Tabular(), {n: draws[n] for n in (2, 3)})
    assert rollouts.groups.tolist() == [2, 2, 2, 3, 3, 3]
    twice = {0: draws[0], 17: draws[0]}
    texts = sample(lab.Tabular(symbols=4), twice).completions
    assert texts[:3] != texts[3:]


def test_completions_of_a_group_differ(lab, draws):
    rollouts = sample(lab.Tabular(symbols=4), {0: draws[0]}, size=16)
    assert len(set(rollouts.completions)) > 4


def test_the_run_seed_and_the_purpose_change_the_samples(lab, draws):
    policy = lab.Tabular(symbols=4)
    completions = sample(policy, draws).completions
    assert completions != sample(policy, draws, seed=4).completions
    assert completions != sample(policy, draws, purpose="evaluate").completions


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
