"""Warnings about the steps of a run: each is given once, and only with a reason."""

import json
import math

import pytest

import groupwise
from groupwise.algorithms.grpo import GRPO
from groupwise.recording.symptoms import Symptoms

HEALTHY = {"mismatch/mean": 1e-7, "zero_variance": 0.5, "reward": 0.5, "skipped_updates": 0.0}


def warnings(symptoms, **metrics):
    return list(symptoms.warnings({**HEALTHY, **metrics}, "the gradient of 'w'"))


def test_a_healthy_run_has_no_warnings():
    symptoms = Symptoms(GRPO())
    assert not any(warnings(symptoms) for _ in range(20))
    assert not warnings(symptoms, **{"mismatch/mean": math.nan})


def test_each_warning_is_given_once():
    class WithWarning(GRPO):
        def warning(self, metrics):
            return "too wide" if metrics.get("width", 0.0) > 2 else None

    symptoms = Symptoms(WithWarning())
    for metrics, expected in [
        ({"mismatch/mean": 0.07}, "from the policy's by 0.07 nats on average (limit 0.05)"),
        ({"skipped_updates": 1.0}, "the first tensor that is not finite is the gradient of 'w'"),
        ({"reward": math.nan}, "no completion of this step has a reward"),
        ({"width": 3.0}, "too wide"),
    ]:
        (warning,) = warnings(symptoms, **metrics)
        assert warning.startswith("warning: ")
        assert expected in warning
        assert not warnings(symptoms, **metrics)
    assert not warnings(Symptoms(GRPO()), width=3.0)


def test_a_gradient_that_epsilon_outweighs_gives_a_warning():
    symptoms = Symptoms(GRPO(), least_norm=1e-3)
    for norm in (0.0, 1e-3, 0.5, math.nan):  # without a signal it is 0
        assert not warnings(symptoms, grad_norm=norm)
    (warning,) = warnings(symptoms, grad_norm=9e-4)
    assert "(grad_norm 0.0009) is so small that AdamW's epsilon shortens" in warning


def test_a_process_reward_without_steps_gives_a_warning():
    """After three training steps in a row without any step of this reward."""
    symptoms = Symptoms(GRPO())
    empty = {"chain/steps": 0.0, "proof/steps": 1.5}
    few = {"chain/steps": 0.01, "proof/steps": 0.0}
    by_step = [
        warnings(symptoms, **metrics) for metrics in (empty, empty, few, empty, empty, empty, empty)
    ]
    assert [len(texts) for texts in by_step] == [0, 0, 0, 0, 0, 1, 0]
    assert "reward 'chain' judges steps of completions, but in the last 3" in by_step[5][0]
    assert "chain/steps in metrics.jsonl" in by_step[5][0]


def test_rewards_in_small_units_that_are_all_below_the_floor_give_a_warning_of_their_own():
    symptoms = Symptoms(GRPO(GRPO.Config(least_std=0.01)))
    by_step = [warnings(symptoms, zero_variance=1.0, reward_std=0.0042) for _ in range(10)]
    assert "a std below algorithm.least_std, 0.01 (now 0.0042 on average)" in by_step[9][0]
    rounded = Symptoms(GRPO(GRPO.Config(least_std=0.01)))
    by_step = [warnings(rounded, zero_variance=1.0, reward_std=1e-17) for _ in range(10)]
    assert "had the same reward" in by_step[9][0]
    assert "a reward with partial credit, or a larger group_size may help" in by_step[9][0]
    symptoms = Symptoms(GRPO(), diversity="a higher temperature")
    by_step = [warnings(symptoms, zero_variance=1.0) for _ in range(10)]
    assert "a higher temperature or a larger group_size may help" in by_step[9][0]


def test_only_consecutive_steps_without_variance_give_a_warning():
    symptoms = Symptoms(GRPO())
    no_variance = {"zero_variance": 1.0}
    assert not any(warnings(symptoms, **no_variance) for _ in range(9))
    assert not warnings(symptoms)
    by_step = [warnings(symptoms, **no_variance) for _ in range(12)]
    assert [len(texts) for texts in by_step] == [0] * 9 + [1] + [0] * 2
    assert "had the same reward (now 0.5 on average)" in by_step[9][0]
    replayed = Symptoms(GRPO())
    assert not any(warnings(replayed, **no_variance, **{"replay/share": 0.1}) for _ in range(12))
    algorithm = GRPO()
    algorithm.take_teacher(frozenset({"log_probs"}))
    taught = Symptoms(algorithm)
    assert not any(warnings(taught, **no_variance) for _ in range(12))


def test_a_short_run_says_at_its_end_that_nothing_was_learned():
    symptoms = Symptoms(GRPO())
    for _ in range(2):
        assert not warnings(symptoms, zero_variance=1.0, reward=0.0, truncated=0.75)
    (warning,) = symptoms.at_end()
    assert "nothing was learned" in warning
    assert "75% of them were cut off" in warning
    warnings(symptoms)  # a step that teaches
    assert not [*symptoms.at_end()]
    assert not [*Symptoms(GRPO()).at_end()]


def test_warnings_stay_in_the_result_and_on_the_page(lab, tmp_path):
    groupwise.train(
        policy=lab.Tabular(),
        prompts={"name": "rows", "rows": lab.rows()},
        rewards=[lambda completions, **_: [0.0] * len(completions)],
        train={"steps": 12, "groups_per_step": 2, "group_size": 4},
        output=tmp_path / "run",
        quiet=True,
    )
    (warning,) = json.loads((tmp_path / "run" / "result.json").read_text())["warnings"]
    assert warning.startswith("step 10: warning: in the last 10 steps all completions")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "does the reward read what the model writes?" in page


def test_tools_that_nobody_calls_give_a_warning_at_the_first_step():
    for calls in ({"environment/calls": 0.0}, {"turns/calls": 0.0, "environment/calls": 0.0}):
        symptoms = Symptoms(GRPO())
        (warning,) = warnings(symptoms, **calls)
        assert "no completion of this step called a tool" in warning
        assert "show a call in the prompt" in warning
        assert not warnings(symptoms, **calls)
    (warning,) = warnings(Symptoms(GRPO()), **{"turns/calls": 0.0, "turns/parsed": 0.0})
    assert "some look like calls, in a form that is not parsed" in warning
    assert not warnings(Symptoms(GRPO()), **{"environment/calls": 0.1, "turns/calls": 0.0})
    assert not warnings(Symptoms(GRPO()), **{"environment/calls": math.nan})
    later = Symptoms(GRPO())
    assert not warnings(later, **{"environment/calls": 0.5})
    assert not warnings(later, **{"environment/calls": 0.0})


def test_turns_that_are_not_as_sampled_give_a_warning():
    assert not warnings(Symptoms(GRPO()), **{"turns/as_sampled": 1.0})
    (warning,) = warnings(Symptoms(GRPO()), **{"turns/as_sampled": 0.975})
    assert "only 97.5% are as they were sampled" in warning


def steps_of(name, values):
    """The warnings of steps with these values, by step."""
    symptoms = Symptoms(GRPO())
    each = [
        (step, [*symptoms.warnings({**HEALTHY, name: value}, step=step)])
        for step, value in enumerate(values, start=1)
    ]
    return {step: texts for step, texts in each if texts}


@pytest.mark.parametrize(
    ("name", "values", "step", "began"),
    [
        ("kl", [0.01] * 40 + [0.01 * 1.6**n for n in range(20)], 48, 42),
        ("grad_norm", [1.0, 2.0] * 20 + [50.0] * 5, 43, 41),
        ("entropy", [0.5] * 40 + [0.01] * 5, 43, 41),
        ("entropy", [0.5] * 40 + [3.0] * 5, 43, 41),
        ("truncated", [0.0] * 40 + [0.9] * 5, 43, 41),
    ],
)
def test_a_metric_that_leaves_its_own_past_is_named_with_the_step_it_began(
    name, values, step, began
):
    shown = steps_of(name, values)
    assert list(shown) == [step]
    (text,) = shown[step]
    assert f"{name} has left its own past since step {began}: " in text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kl", [0.0005 * n for n in range(200)]),  # grows steadily
        ("kl", [1e-6] * 40 + [1e-3] * 40),  # both are nothing
        ("grad_norm", [1.0] * 40 + [1000.0, 1.0, 1.0, 1.0] * 3),  # odd steps
        ("entropy", [math.exp(-n / 20) for n in range(100)]),
        ("truncated", [0.1] * 40 + [0.4] * 40),
        ("grad_norm", [0.0, math.nan] * 30),
    ],
)
def test_what_healthy_runs_do_is_no_collapse(name, values):
    assert not steps_of(name, values)
