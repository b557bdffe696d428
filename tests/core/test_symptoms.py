"""Warnings about a run's steps: each comes once, and only where there is reason."""

import math

from groupwise.run.symptoms import Symptoms

WELL = {"ratio_error": 1e-7, "zero_variance": 0.5, "reward": 0.5, "skipped_updates": 0.0}


def warnings(symptoms, **metrics):
    return list(symptoms.look({**WELL, **metrics}, "the gradient of 'w'"))


def test_a_run_that_is_well_says_nothing():
    symptoms = Symptoms(clip=0.2)
    assert not any(warnings(symptoms) for _ in range(20))
    assert not warnings(symptoms, ratio_error=math.nan)


def test_each_comes_once():
    symptoms = Symptoms(clip=1e-4)
    for metrics, words in [
        ({"ratio_error": 2e-5}, "ratio at the first update is off by 2e-05 (limit 1e-05)"),
        ({"skipped_updates": 1.0}, "the first tensor that is not is the gradient of 'w'"),
        ({"reward": math.nan}, "no completion of this step has a reward"),
        ({"log_prob_error": 2.5e-4}, "2.5 times the clip range of 0.0001"),
    ]:
        (said,) = warnings(symptoms, **metrics)
        assert said.startswith("warning: ")
        assert words in said
        assert not warnings(symptoms, **metrics)
    assert not warnings(Symptoms(clip=1e-3), log_prob_error=2.5e-4)


def test_steps_without_variance_must_come_in_a_row():
    symptoms = Symptoms(clip=0.2)
    same = {"zero_variance": 1.0}
    assert not any(warnings(symptoms, **same) for _ in range(9))
    assert not warnings(symptoms)
    said = [warnings(symptoms, **same) for _ in range(12)]
    assert [len(each) for each in said] == [0] * 9 + [1] + [0] * 2
