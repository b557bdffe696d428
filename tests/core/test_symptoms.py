"""Warnings about a run's steps: each comes once, and only where there is reason."""

import math

from groupwise.algorithms.grpo import GRPO
from groupwise.run.symptoms import Symptoms

WELL = {"mismatch/mean": 1e-7, "zero_variance": 0.5, "reward": 0.5, "skipped_updates": 0.0}


def warnings(symptoms, **metrics):
    return list(symptoms.warnings({**WELL, **metrics}, "the gradient of 'w'"))


def test_a_run_that_is_well_says_nothing():
    symptoms = Symptoms(GRPO())
    assert not any(warnings(symptoms) for _ in range(20))
    assert not warnings(symptoms, **{"mismatch/mean": math.nan})


def test_each_comes_once():
    class Watchful(GRPO):
        def warning(self, metrics):
            return "too wide" if metrics.get("width", 0.0) > 2 else None

    symptoms = Symptoms(Watchful())
    for metrics, words in [
        ({"mismatch/mean": 0.07}, "from the policy's by 0.07 nats on average (limit 0.05)"),
        ({"skipped_updates": 1.0}, "the first tensor that is not finite is the gradient of 'w'"),
        ({"reward": math.nan}, "no completion of this step has a reward"),
        ({"width": 3.0}, "too wide"),
    ]:
        (warning,) = warnings(symptoms, **metrics)
        assert warning.startswith("warning: ")
        assert words in warning
        assert not warnings(symptoms, **metrics)
    assert not warnings(Symptoms(GRPO()), width=3.0)


def test_a_process_reward_that_finds_no_steps():
    """Three training steps in a row, each reward by itself; one that finds some is well."""
    symptoms = Symptoms(GRPO())
    empty = {"chain/steps": 0.0, "proof/steps": 1.5}
    few = {"chain/steps": 0.01, "proof/steps": 0.0}
    heard = [warnings(symptoms, **now) for now in (empty, empty, few, empty, empty, empty, empty)]
    assert [len(each) for each in heard] == [0, 0, 0, 0, 0, 1, 0]
    assert "reward 'chain' judges steps of completions, but in the last 3" in heard[5][0]
    assert "chain/steps in metrics.jsonl" in heard[5][0]


def test_steps_without_variance_must_come_in_a_row():
    symptoms = Symptoms(GRPO())
    same = {"zero_variance": 1.0}
    assert not any(warnings(symptoms, **same) for _ in range(9))
    assert not warnings(symptoms)
    said = [warnings(symptoms, **same) for _ in range(12)]
    assert [len(each) for each in said] == [0] * 9 + [1] + [0] * 2
    replayed = Symptoms(GRPO())
    assert not any(warnings(replayed, **same, **{"replay/share": 0.1}) for _ in range(12))
