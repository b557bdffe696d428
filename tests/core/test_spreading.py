"""Completions are sampled by the processes that have fewest to sample, and come back."""

from dataclasses import replace

import pytest
import torch
from accelerate.utils import gather_object
from hypothesis import given
from hypothesis import strategies as st
from tests.core.launching import call

from groupwise.episodes.spreading import moves
from groupwise.sampler import GroupSampler

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=9)


@given(COUNTS)
def test_numbers_differ_by_one_at_most_and_few_move(counts):
    given = moves(counts)
    kept = [count - sum(own) for count, own in zip(counts, given, strict=True)]
    loads = [own + sum(column) for own, column in zip(kept, zip(*given, strict=True), strict=True)]
    assert max(loads) - min(loads) <= 1
    assert all(bool(own) == bool(count) for own, count in zip(kept, counts, strict=True) if count)
    mean = sum(counts) / len(counts)
    assert sum(map(sum, given)) <= sum(max(0.0, count - mean) for count in counts)


def three_groups(lab, folder):
    """Two steps of three groups of four, with evaluations, on two processes."""
    return {name: trained(lab, apart=name == "apart") for name in ("whole", "apart")}


def trained(lab, *, apart):
    class Painter(lab.Tabular, GroupSampler):
        """Notes what it samples; it has a tensor for rewards, and knows the seed of the group."""

        facts, samples_apart = frozenset({"pixels"}), apart

        def sample(self, prompts, *, group_size, seeds, purpose="train", group_seeds=None):
            rollouts = super().sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)
            if purpose == "train":
                shared = seeds[::group_size] if group_seeds is None else group_seeds
                sampled.extend((own, shared[row // group_size]) for row, own in enumerate(seeds))
            return replace(rollouts, facts={"pixels": [torch.tensor(own % 97) for own in seeds]})

    def reward(completions, pixels, prompts, purpose, **_):
        judged.append(len({*prompts}) * (purpose == "train"))
        pairs = zip(completions, pixels, strict=True)
        return [len(text) + 0.01 * float(each) for text, each in pairs]

    sampled, judged, steps, evaluations = [], [], [], []
    settings = {"groups_per_step": 3, "steps": 2, "learning_rate": 0.3, "evaluate_every": 1}
    trainer = lab.trainer(Painter(), reward=reward, **settings)
    assert lab.fit(
        trainer,
        lambda _, own: steps.append([own["reward"], own["loss"], own["zero_variance"]]),
        lambda: None,
        lambda _, own: evaluations.append(own.metrics["reward"]),
    )
    every = gather_object([sampled])
    return {
        "numbers": [len(own) for own in every],
        "seeds": sorted(pair for own in every for pair in own),
        "judged": gather_object([max(judged)]),
        "steps": steps,
        "evaluations": evaluations,
        "table": trainer.policy.table.tolist(),
    }


@pytest.mark.slow
def test_idle_processes_sample_completions_of_others(tmp_path):
    results = call(three_groups, tmp_path, 2)
    whole, apart = results["whole"], results["apart"]
    assert whole["numbers"] == [16, 8]
    assert apart["numbers"] == [12, 12]
    assert apart["judged"] == whole["judged"] == [2, 1]  # groups are judged whole
    for name in ("seeds", "steps", "evaluations", "table"):
        assert apart[name] == whole[name]
    assert whole["evaluations"]
