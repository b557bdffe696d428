"""Weights of rewards that change during a run: schedules, and constraints with multipliers."""

import json
import math
from pathlib import Path

import pytest
import torch

import groupwise
from groupwise.algorithms.grpo import GRPO
from groupwise.config.load import dump, load_config
from groupwise.kit.constraint import Constraint
from groupwise.kit.errors import UserError
from groupwise.kit.schedule import Schedule
from groupwise.rewards import Reward, RunState, Scores
from groupwise.scoring.scorer import Scorer
from groupwise_algorithms.gdpo import GDPO


def ones(completions, **_):
    return [float(text.count("1")) for text in completions]


def size(completions, **_):
    return [float(len(text)) for text in completions]


def constrained(**constraint):
    return Reward(name="size", function=size, constraint=Constraint(**constraint))


# ---- schedules


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("linear", [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ("cosine", [1.0, 1 - 0.4 * (1 - 2**-0.5), 0.6, 1 - 0.4 * (1 + 2**-0.5), 0.2, 0.2]),
        ("jump", [1.0, 1.0, 1.0, 1.0, 0.2, 0.2]),
    ],
)
def test_a_schedule_goes_from_start_to_end_and_stays(shape, expected):
    schedule = Schedule(start=1.0, end=0.2, steps=4, shape=shape)
    assert [schedule.at(step) for step in range(6)] == pytest.approx(expected)
    assert schedule.at(10**9) == 0.2


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_step_uses_its_own_weight_and_every_evaluation_the_final_one(lab, ahead):
    schedule = Schedule(start=2.0, end=0.5, steps=3)
    one = Reward(name="ones", function=ones, weight=schedule)
    trainer = lab.trainer(reward=[one], ahead=ahead, steps=5, evaluate_every=2)
    steps, evaluations = [], []
    assert lab.fit(
        trainer,
        lambda step, metrics: steps.append(metrics),
        lambda: None,
        lambda step, evaluation: evaluations.append(evaluation),
    )
    weights = [2.0, 1.5, 1.0, 0.5, 0.5]
    assert [m["weights/ones"] for m in steps] == pytest.approx(weights)
    for metrics, weight in zip(steps, weights, strict=True):
        assert metrics["reward"] == pytest.approx(weight * metrics["rewards/ones"])
    assert len(evaluations) == 2
    for evaluation in evaluations:  # the same weight, so that evaluations can be compared
        rewards = evaluation.metrics
        assert rewards["reward"] == pytest.approx(0.5 * rewards["rewards/ones"])


def test_constant_weights_are_not_logged():
    scorer = Scorer([Reward(name="ones", function=ones, weight=3.0)])
    assert scorer.end_step(4, {"rewards/ones": 1.0}) == {}


# ---- constraints


@pytest.mark.parametrize(
    ("bounds", "bound", "mean", "violation"),
    [
        ({"at_most": 40.0}, "at_most", 50.0, 10 / 40),
        ({"at_most": 40.0}, "at_most", 20.0, -20 / 40),
        ({"at_least": 0.8}, "at_least", 0.4, 0.5),
        ({"at_least": 0.8}, "at_least", 1.0, -0.25),
        ({"at_least": -2.0, "at_most": 4.0}, "at_least", -6.0, 4 / 4),
        ({"at_most": 0.0}, "at_most", 3.0, 3.0),
    ],
)
def test_a_violation_is_relative_to_the_bound(bounds, bound, mean, violation):
    assert Constraint(**bounds).violation(bound, mean) == pytest.approx(violation)


def test_a_multiplier_rises_while_its_bound_is_violated_and_stays_in_its_range():
    constraint = Constraint(at_most=1.0, learning_rate=0.1, damping=2.0, largest=2.0)
    assert constraint.ascended(0.5, 0.25) == pytest.approx(0.525)
    assert constraint.multiplier(0.5, 0.25) == pytest.approx(1.0)
    assert constraint.ascended(0.5, -0.5) == pytest.approx(0.45)
    for update in (constraint.ascended, constraint.multiplier):
        assert (update(0.5, 1e9), update(0.5, -1e9)) == (2.0, 0.0)


def test_the_total_is_that_of_the_lagrangian(lab):
    """total = w r - (u - l) m / s: u, l the multipliers of at_most and at_least, s the unit."""
    scorer = Scorer(
        [
            Reward(name="ones", function=ones, weight=3.0),
            constrained(at_most=4.0, at_least=2.0, start=0.6),
        ]
    )
    scorer.weights.ascents["size"]["at_least"].integral = 0.1
    rollouts = lab.build([{"id": 0}] * 3, [[1, 1, 0], [2, 0], [1, 2, 1, 2, 0]])
    scores = scorer(rollouts, RunState(global_step=7))
    assert scores.weights == (3.0, -0.5)
    assert scores.values[:, 1].tolist() == [3.0, 2.0, 5.0]  # values stay as measured
    expected = [3 * 2 - 0.5 * 3 / 4, -0.5 * 2 / 4, 3 * 2 - 0.5 * 5 / 4]
    assert scores.total.tolist() == pytest.approx(expected)
    joined = Scores.concat([scores.select(torch.tensor([0, 1])), scores.select(torch.tensor([2]))])
    assert joined.total.tolist() == scores.total.tolist()
    assert scorer.weights.final == (3.0, 0.0)


def test_an_earlier_stage_of_a_chain_has_means_of_the_constrained_totals(lab):
    """A writer with two completions, which prompted two and one."""
    rollouts = lab.build([{"id": 0}] * 3, [[1, 1, 0], [2, 0], [1, 2, 1, 2, 0]])
    scores = Scorer([Reward(name="ones", function=ones), constrained(at_most=4.0, start=0.6)])(
        rollouts
    )
    means = lab.credited(scores, [0, 0, 1])
    assert means.total.tolist() == pytest.approx([1 - 0.6 * 2.5 / 4, 2 - 0.6 * 5 / 4])


def test_step_rewards_are_scaled_by_the_multiplier_and_the_bound(lab):
    def steps(completions, **_):
        return [[1.0] * len(text) for text in completions]

    judge = Reward(name="steps", function=steps, constraint=Constraint(at_most=4.0, start=0.6))
    scores = Scorer([judge])(lab.build([{"id": 0}], [[1, 1, 0]]))
    assert scores.steps.tolist() == [pytest.approx([-0.15] * 3)]
    assert scores.total.tolist() == pytest.approx([-0.45])


def diminishing(completions, **_):
    return [1.0 - 0.5 ** text.count("1") for text in completions]


def train_metrics(lab, algorithm, *rewards):
    """Metrics of 56 steps with `diminishing`, which pays more for longer completions."""
    trainer = lab.trainer(
        lab.Tabular(prompts=4, seed=2),
        algorithm,
        [Reward(name="ones", function=diminishing), *rewards],
        source=lab.rows(4),
        held_out=0.0,
        evaluation={"prompts": 0},
        steps=56,
        group_size=16,
    )
    steps = []
    assert lab.fit(trainer, lambda step, metrics: steps.append(metrics))
    return steps


@pytest.fixture(scope="module")
def unbounded(lab):
    return train_metrics(lab, GRPO())


@pytest.mark.parametrize("algorithm", [GRPO, GDPO])
@pytest.mark.slow
def test_a_constraint_is_satisfied_while_the_reward_rises(lab, unbounded, algorithm):
    constraint = Constraint(at_most=3.2, learning_rate=0.2)
    steps = train_metrics(
        lab, algorithm(), Reward(name="size", function=size, constraint=constraint)
    )
    assert unbounded[-1]["length"] > 4.5
    last = [metrics["length"] for metrics in steps[-5:]]
    assert sum(last) / 5 == pytest.approx(3.2, abs=0.25)
    assert steps[-1]["rewards/ones"] > steps[0]["rewards/ones"] + 0.15
    # Metrics have the multiplier of the step; ascent on its mean gives that of the next step.
    integral = violation = 0.0
    for metrics in steps:
        multiplier = constraint.multiplier(integral, violation)
        assert metrics["multipliers/size/at_most"] == multiplier
        violation = constraint.violation("at_most", metrics["rewards/size"])
        integral = constraint.ascended(integral, violation)
    assert integral > 0


def test_a_step_without_values_changes_no_multiplier():
    scorer = Scorer([constrained(at_most=1.0, start=0.3)])
    for step in range(2):
        used = scorer.end_step(step, {"rewards/size": math.nan})
        assert used == {"multipliers/size/at_most": 0.3}


# ---- checkpoints


def scorer(**constraint):
    return Scorer([Reward(name="ones", function=ones), constrained(**constraint)])


def test_state_is_restored_for_the_bounds_that_exist():
    before = scorer(at_most=4.0, start=0.1 + 0.2)
    before.weights.ascend({"size": 4.1})
    assert Scorer([Reward(name="ones", function=ones)]).state_dict() == {}
    state = json.loads(json.dumps(before.state_dict()))
    same = scorer(at_most=4.0)
    same.load_state_dict(state)
    assert same.weights.metrics(1) == before.weights.metrics(1)
    after = scorer(at_most=4.0, at_least=1.0)
    after.load_state_dict(state)
    assert after.weights.multipliers("size")["at_least"] == 0.0
    after.load_state_dict({"multipliers": {"another": {}}})
    assert (
        after.weights.multipliers("size")["at_most"] == same.weights.multipliers("size")["at_most"]
    )


@pytest.mark.parametrize(
    "state",
    [3, {"at_most": 0.5}, {"at_most": {"integral": -1.0}}, {"at_most": {"integral": math.nan}}],
)
def test_a_malformed_state_of_a_reward_is_refused(state):
    with pytest.raises(UserError, match=r"reward 'size': .* no state of a multiplier"):
        scorer(at_most=4.0).load_state_dict({"multipliers": {"size": state}})


def test_a_malformed_state_of_all_multipliers_is_refused():
    with pytest.raises(UserError, match=r"reward 'size': .* no state of a multiplier"):
        scorer(at_most=4.0).load_state_dict({"multipliers": [1.0]})


def test_a_resumed_run_has_the_same_weights_and_multipliers(lab, tmp_path):
    def train(name, steps, **options):
        groupwise.train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[
                {"name": ones, "weight": {"start": 1.0, "end": 0.1, "steps": 2}},
                {"name": size, "constraint": {"at_most": 2.0, "at_least": 1.9, "start": 0.2}},
            ],
            output=tmp_path / name,
            quiet=True,
            **{"train.learning_rate": 0.05, "train.steps": steps, "evaluation.prompts": 0},
            **options,
        )
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        keys = ("reward", "weights/ones", "multipliers/size/at_most", "multipliers/size/at_least")
        return {row["step"]: [row[key] for key in keys] for row in map(json.loads, lines)}

    expected = train("uninterrupted", 4)
    train("parts", 2)
    assert train("parts", 4, resume=True) == expected
    assert len({values[2] for values in expected.values()}) == 4  # the multiplier changed


# ---- what is refused

HEAD = """policy: tests.core.conftest:Tabular
prompts: {name: rows, rows: [{prompt: a}]}
train: {steps: 20}
rewards:
  - name: tests.core.test_balance:ones
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "    constraint:",
            "line 6: rewards.0.constraint: a constraint needs a bound: set at_most",
        ),
        (
            "    constraint:\n      learning_rate: 0.2",
            "line 6: rewards.0.constraint: a constraint needs a bound: set at_most, at_least",
        ),
        (
            "    constraint: {at_most: 2, at_least: 3}",
            "line 6: rewards.0.constraint: the bounds cross: nothing is at least 3 and at most 2",
        ),
        (
            "    constraint: {at_most: 2}\n    weight: 0.5",
            "line 7: rewards.0.weight: a reward with a constraint is weighted by its multi",
        ),
        (
            "    constraint: {at_most: 2, start: 3, largest: 1}",
            "line 6: rewards.0.constraint: the multiplier cannot start at 3, above its largest",
        ),
        ("    constraint: {at_least: much}", "line 6: rewards.0.constraint.at_least: expected a n"),
        ("    weight: {start: 1, end: 0}", "line 6: rewards.0.weight.steps: missing"),
        (
            "    weight: {start: 1, end: 0, steps: 0}",
            "line 6: rewards.0.weight.steps: expected at least 1, found 0",
        ),
        (
            "    weight: {start: 1, end: 0, steps: .inf}",
            "line 6: rewards.0.weight.steps: expected a finite number, found inf",
        ),
        (
            "    weight:\n      start: 1\n      end: 0\n      steps: 21",
            "line 9: rewards.0.weight.steps: the schedule takes 21 steps, but the run has on",
        ),
        (
            "    weight: {start: 1, end: 0, steps: 5, form: linear}",
            "line 6: rewards.0.weight.form: unknown key",
        ),
        ("    weight: heavy", "line 6: rewards.0.weight: expected a number, found 'heavy'"),
    ],
)
def test_a_mistake_has_one_message_with_its_line(tmp_path: Path, lines, message):
    (tmp_path / "run.yaml").write_text(HEAD + lines + "\n")
    with pytest.raises(UserError) as caught:
        groupwise.train(tmp_path / "run.yaml")
    (line,) = str(caught.value).splitlines()
    assert f"run.yaml, {message}" in line


def test_a_schedule_longer_than_the_run_is_refused(lab, tmp_path):
    with pytest.raises(UserError, match=r"rewards\.0\.weight\.steps: the schedule takes [0-9]+ s"):
        groupwise.train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[{"name": ones, "weight": {"start": 1.0, "end": 0.1, "steps": 9}}],
            output=tmp_path / "run",
            **{"train.steps": 3},
        )


@pytest.mark.parametrize("name", ["multipliers", "weights"])
def test_a_reward_may_not_have_the_name_of_a_metric(name):
    with pytest.raises(UserError, match="as metrics of the run itself are"):
        Scorer([Reward(name=name, function=ones)])


def test_a_saved_configuration_can_be_loaded():
    sections = {
        "policy": "toy",
        "prompts": {"name": "rows", "rows": [{"prompt": "a"}]},
        "rewards": [
            "a",
            {"name": "b", "weight": {"start": 1, "end": 0, "steps": 5}},
            {"name": "c", "constraint": {"at_most": 2}},
        ],
    }
    config = load_config(sections).config
    folder = Path(__file__).parent
    assert "steps: 5" in dump(config)
    loaded = load_config(config.model_dump(mode="json"), folder=folder).config
    assert loaded == config
