"""The training loop: schedules, counts of updates, limits, signals, skipped updates, evaluation."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import combinations

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from groupwise import LogProbs
from groupwise.config.load import load_config
from groupwise.config.sections import EvaluationSection
from groupwise.evaluator.summary import pass_at, summarise
from groupwise.experience.accuracy import Accuracy
from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise.rewards import Reward
from groupwise.scoring.scorer import Scorer


def fit(lab, trainer, on_step=None):
    steps = []

    def record(step, metrics):
        steps.append((step, metrics))
        if on_step is not None:
            on_step(step, metrics)

    return lab.fit(trainer, record, lambda: None), steps


def count_steps(trainer):
    """The number of optimizer steps, as counted by AdamW."""
    state = trainer.learner.optimizer.adamw.state[trainer.policy.table]
    return int(state["step"]) if state else 0


# ---- schedules


def section(**settings):
    """The section `train` of a configuration."""
    data = {"policy": "p", "prompts": "rows", "rewards": ["r"], "train": settings}
    return load_config(data).config.train


@pytest.fixture
def rates(lab):
    """Of a run, the learning rates of all steps, as factors of the highest."""

    def of(**settings):
        learner = lab.trainer(learning_rate=1.0, **settings).learner
        return [learner.rate(step, 0.0) for step in range(settings["steps"])]

    return of


def test_schedules_match_their_formulas(rates):
    assert rates(steps=4) == [1.0] * 4
    assert rates(steps=5, schedule="linear") == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    cosine = [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert rates(steps=4, schedule="cosine") == pytest.approx(cosine)
    assert rates(steps=6, schedule="linear", warmup_steps=4) == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.5]
    )
    assert rates(steps=3, schedule="cosine", warmup_steps=5) == pytest.approx([0.2, 0.4, 0.6])


def test_a_limit_in_minutes_drives_the_schedule(lab):
    def rate(step, minutes, **settings):
        settings = {"steps": 100, "minutes": 10, "learning_rate": 1.0, **settings}
        return lab.trainer(**settings).learner.rate(step, 60 * minutes)

    assert [rate(0, minutes, schedule="linear") for minutes in (0, 5, 10, 11)] == [1, 0.5, 0, 0]
    assert rate(50, 5, schedule="cosine") == pytest.approx(0.5)
    assert rate(75, 5, schedule="linear") == 0.25  # steps or minutes, whichever is further
    assert rate(25, 5, schedule="linear") == 0.5
    assert rate(25, 5) == 1.0
    # The warm-up is of steps, and a schedule of its own length counts only steps.
    assert rate(1, 9, schedule="linear", warmup_steps=4) == 0.5
    assert rate(50, 9, schedule="linear", schedule_steps=200) == 0.75


def test_the_learning_rate_of_a_run_with_a_time_limit_falls_with_the_time(lab):
    trainer = lab.trainer(schedule="linear", steps=10**6, minutes=10.0, learning_rate=0.01)
    trainer.resume_at(step=0, seconds=300.0, prompts_state=trainer.experience.state_dict())
    rates = []

    def on_step(step, metrics):
        rates.append(metrics["learning_rate"])
        trainer.started -= 120  # as if the step had taken two minutes

    assert lab.fit(trainer, on_step, lambda: None)
    assert rates == pytest.approx([0.005, 0.003, 0.001], abs=1e-4)


def test_a_schedule_may_be_longer_than_the_run_but_not_shorter(rates):
    longer = rates(steps=2, schedule="linear", schedule_steps=4)
    assert longer == rates(steps=4, schedule="linear")[:2] == [1.0, 0.75]
    with pytest.raises(UserError, match=r"would be 0 after step 3, and train.steps is 4"):
        section(steps=4, schedule="cosine", schedule_steps=3)
    assert section(steps=4, schedule_steps=3).schedule == "constant"


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_the_optimizer_uses_the_scheduled_learning_rate(lab, rates, kind):
    trainer = lab.trainer(schedule=kind, warmup_steps=2, steps=5, learning_rate=0.01, epochs=2)
    expected = rates(schedule=kind, warmup_steps=2, steps=5)
    for step in range(5):
        metrics = lab.step(trainer)
        assert metrics["learning_rate"] == pytest.approx(0.01 * expected[step])
        assert trainer.learner.optimizer.adamw.param_groups[0]["lr"] == pytest.approx(
            0.01 * expected[step]
        )


def test_with_a_learning_rate_of_zero_the_weights_stay(lab):
    trainer = lab.trainer(learning_rate=0.0)
    before = trainer.policy.table.detach().clone()
    fit(lab, trainer)
    assert torch.equal(trainer.policy.table, before)


# ---- counts


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (4, 1), (1, 3), (2, 2)])
def test_a_step_makes_updates_per_rollout_times_epochs_updates(lab, updates, epochs):
    trainer = lab.trainer(updates_per_rollout=updates, epochs=epochs, steps=3)
    update_groups = []
    accumulate = type(trainer.learner.updater).accumulate

    def recording(update, targets):
        update_groups.append(update.rollouts.groups.unique().tolist())
        return accumulate(trainer.learner.updater, update, targets)

    object.__setattr__(trainer.learner.updater, "accumulate", recording)
    finished, steps = fit(lab, trainer)
    assert finished
    assert [step for step, _ in steps] == [1, 2, 3]
    assert len(update_groups) == 3 * updates * epochs
    assert count_steps(trainer) == len(update_groups)
    for step in range(3):
        numbers = list(range(4 * step, 4 * step + 4))
        epoch = [numbers[i : i + 4 // updates] for i in range(0, 4, 4 // updates)]
        size = updates * epochs
        assert update_groups[step * size : (step + 1) * size] == epoch * epochs
    assert trainer.experience.prompts.drawn == 12


def test_a_run_of_zero_steps_ends_at_once(lab):
    trainer = lab.trainer(steps=0)
    assert fit(lab, trainer) == (True, [])


def test_training_raises_the_reward(lab):
    trainer = lab.trainer(steps=40, group_size=8, held_out=0.0, learning_rate=0.1)
    _, steps = fit(lab, trainer)
    assert steps[-1][1]["reward"] > steps[0][1]["reward"] + 0.5


def test_max_grad_norm_clips_but_the_logged_norm_is_unclipped(lab):
    """The norm of the applied gradient is computed from the first moment of AdamW."""
    for limit, share in ((1e9, 1.0), (math.inf, 1.0), (1e-3, None)):
        trainer = lab.trainer(steps=1, max_grad_norm=limit)
        metrics = lab.step(trainer)
        moment = trainer.learner.optimizer.adamw.state[trainer.policy.table]["exp_avg"]
        applied = float(moment.norm()) / 0.1
        expected = metrics["grad_norm"] * share if share else limit
        assert applied == pytest.approx(expected, rel=1e-4)


def test_checkpoints_and_evaluations_happen_every_so_many_steps(lab):
    evaluation = {"threshold": 0.5}
    trainer = lab.trainer(steps=5, checkpoint_every=2, evaluate_every=2, evaluation=evaluation)
    events = []
    lab.fit(
        trainer,
        lambda step, metrics: events.append(
            (step, "evaluation/accuracy" in metrics, "time/evaluate" in metrics)
        ),
        lambda: events.append("checkpoint"),
    )
    assert events == [
        (1, False, False),
        (2, True, True),
        "checkpoint",
        (3, False, False),
        (4, True, True),
        "checkpoint",
        (5, False, False),
    ]


def test_checkpoints_happen_every_so_many_minutes(lab, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def three_minutes_later(step, metrics):
        nonlocal now
        now += 180
        events.append(step)

    trainer = lab.trainer(steps=7, checkpoint_minutes=8.0)
    events = []
    lab.fit(trainer, three_minutes_later, lambda: events.append("checkpoint"))
    assert events == [1, 2, 3, "checkpoint", 4, 5, 6, "checkpoint", 7]
    never = lab.trainer(steps=6, checkpoint_minutes=None)
    lab.fit(never, lambda *_: None, lambda: pytest.fail("no checkpoint is due"))


def test_metrics_of_a_step_are_those_of_its_rollouts(lab):
    """Compared with values from the same rollouts, sampled again with the same seeds."""
    section = {"evaluation": {"threshold": 1.0}}
    trainer, twin = lab.trainer(group_size=3, **section), lab.trainer(group_size=3, **section)
    metrics = lab.step(trainer)
    scored = twin.experience.next(twin.state)
    rollouts, scores = scored.rollouts, scored.scores
    total = scores.total.view(4, 3)
    assert metrics["reward"] == pytest.approx(float(total.mean()))
    assert metrics["rewards/ones"] == pytest.approx(float(total.mean()))
    assert metrics["reward_std"] == pytest.approx(float(total.std(dim=1).mean()))
    assert metrics["accuracy"] == pytest.approx(float((total >= 1).double().mean()))
    dead = (total == total[:, :1]).all(dim=1).double().mean()
    assert metrics["zero_variance"] == pytest.approx(float(dead))
    assert metrics["length"] == pytest.approx(float(rollouts.lengths.double().mean()))
    assert metrics["length_max"] == float(rollouts.lengths.max())
    assert metrics["truncated"] == pytest.approx(float(rollouts.truncated.double().mean()))
    assert metrics["failed"] == metrics["unscored"] == 0


# ---- limits and interruptions


def test_a_run_ends_at_its_limit_of_minutes(lab):
    trainer = lab.trainer(steps=10_000, minutes=0.2 / 60)
    finished, steps = fit(lab, trainer)
    assert finished
    assert 0 < len(steps) < 10_000
    # The time before resuming counts.
    resumed = lab.trainer(steps=10_000, minutes=1.0)
    resumed.resume_at(step=0, seconds=61.0, prompts_state=resumed.experience.state_dict())
    assert fit(lab, resumed) == (True, [])


@pytest.mark.parametrize(
    "numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM]]
)
def test_a_signal_ends_the_run_after_the_current_step(lab, numbers):
    before = signal.getsignal(numbers[0])
    trainer = lab.trainer(steps=50)

    def interrupt(completions, **_):
        for number in numbers if trainer.step == 2 else ():  # in the middle of the third step
            os.kill(os.getpid(), number)
        return lab.ones(completions)

    trainer.experience.scorer = Scorer([Reward(name="ones", function=interrupt)])
    steps, noted = [], []
    nothing = lambda *_: None  # noqa: E731
    record = lambda step, _: steps.append(step)  # noqa: E731
    assert not lab.fit(trainer, record, nothing, nothing, noted.append)
    assert steps == [1, 2, 3]
    assert noted == [signal.Signals(numbers[0]).name]  # once, as soon as the first one comes
    assert trainer.step == count_steps(trainer) == 3
    assert signal.getsignal(numbers[0]) is before


def test_sigint_ends_the_run_even_if_it_was_ignored(lab):
    """Shells make the background jobs of a script ignore Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        finished, steps = fit(
            lab, lab.trainer(steps=50), lambda step, _: os.kill(os.getpid(), signal.SIGINT)
        )
        assert (finished, len(steps)) == (False, 1)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_a_signal_in_a_callback_ends_the_run(lab):
    trainer = lab.trainer(steps=50)

    def interrupt(step, metrics):
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    finished, steps = fit(lab, trainer, interrupt)
    assert not finished
    assert len(steps) == 2


def test_a_second_signal_interrupts_at_once(lab):
    before = signal.getsignal(signal.SIGINT)

    def interrupt(step, metrics):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(lab, lab.trainer(steps=50), interrupt)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_training_works_outside_the_main_thread(lab):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(fit(lab, lab.trainer(steps=2))[0]))
    thread.start()
    thread.join(timeout=100)
    assert outcome == [True]


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused_before_the_weights_change(lab, factor):
    class Breaks(lab.Tabular):
        def forward(self, rollouts, decisions=slice(None)):
            output = super().forward(rollouts, decisions)
            if torch.is_grad_enabled() and trainer.step == 1:
                return LogProbs(log_probs=output.log_probs + 0 * self.table.sum() * factor)
            return output

    trainer = lab.trainer(Breaks(), steps=3, max_skipped_updates=0)
    lab.step(trainer)
    before = trainer.policy.table.detach().clone()
    with pytest.raises(UserError, match="step 2: the gradient norm is nan"):
        lab.step(trainer)
    assert torch.equal(trainer.policy.table, before)


def trainer_with_nan(lab, at, where):
    """A trainer whose log-probs, or whose gradients, are NaN in the steps `at`."""

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.nan

    class Breaks(lab.Tabular):
        def forward(self, rollouts, decisions=slice(None)):
            output = super().forward(rollouts, decisions)
            if not torch.is_grad_enabled() or trainer.step not in at:
                return output
            spoil = Gradient.apply if where == "gradient" else lambda values: values * math.nan
            return LogProbs(log_probs=spoil(output.log_probs), entropy=output.entropy)

    trainer = lab.trainer(Breaks(), steps=9, max_skipped_updates=2, ema=0.9)
    return trainer


@pytest.mark.parametrize("where", ["log_probs", "gradient"])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(lab, where):
    trainer = trainer_with_nan(lab, {1, 2, 4}, where)
    names = {"log_probs": "'log_probs' of the policy", "gradient": "the gradient of 'table'"}
    for step in range(6):
        before = trainer.policy.table.detach().clone()
        metrics = lab.step(trainer)
        skipped = step in (1, 2, 4)
        assert metrics["skipped_updates"] == skipped
        assert torch.equal(trainer.policy.table, before) == skipped
        assert math.isfinite(metrics["grad_norm"]) != skipped
        if skipped:
            assert trainer.learner.optimizer.first_nonfinite == names[where]
    assert count_steps(trainer) == trainer.learner.updates == 3
    assert trainer.policy.table.isfinite().all()


def test_more_than_max_skipped_updates_in_a_row_end_the_run(lab):
    trainer = trainer_with_nan(lab, {1, 2, 3}, "log_probs")
    for _ in range(3):
        lab.step(trainer)
    with pytest.raises(UserError, match=r"(?s)step 4: .* is nan, and 3 updates in a row .*log_pro"):
        lab.step(trainer)


def test_idle_passes_are_as_small_as_the_micro_batches_of_the_policy(lab, monkeypatch):
    """Another process has 3 micro-batches more, so this one runs 3 passes without effect."""

    class Stepwise(lab.Tabular):
        def microbatches(self, rollouts, budget, *, cut_decisions):
            return [
                (torch.tensor([row]), slice(at, at + 1))
                for row, length in enumerate(rollouts.lengths.tolist())
                for at in range(length)
            ]

        def forward(self, rollouts, decisions=slice(None)):
            output = super().forward(rollouts, decisions)
            shapes.append(tuple(output.log_probs.shape))
            return output

    shapes = []
    trainer = lab.trainer(Stepwise())
    scored = trainer.experience.next(trainer.state)
    rollouts, scores = lab.trained(scored), scored.scores
    trainer.learner.updater.dummy = rollouts.select([0])
    shapes.clear()
    trainer.learner.updater.backward(scores=scores, rollouts=rollouts, outputs={})
    gradient, count = lab.gradient(trainer.policy), len(shapes)
    monkeypatch.setattr(processes, "largest", lambda count: count + 3)
    trainer.policy.zero_grad()
    shapes.clear()
    trainer.learner.updater.backward(scores=scores, rollouts=rollouts, outputs={})
    assert set(shapes) == {(1, 1)}
    assert len(shapes) == count + 3
    assert torch.equal(lab.gradient(trainer.policy), gradient)


# ---- evaluation


@pytest.mark.parametrize("samples", [1, 2, 4, 6])
def test_pass_at_k_is_the_share_of_subsets_of_k_with_a_right_completion(samples):
    for correct in range(samples + 1):
        answers = [True] * correct + [False] * (samples - correct)
        for k in range(1, samples + 1):
            subsets = list(combinations(answers, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at(k, samples, correct) == pytest.approx(expected)


def sample(draw, index, right, *, greedy=False, reward=1.0, length=3, truncated=False):
    return {
        "draw": draw,
        "index": index,
        "right": right,
        "greedy": greedy,
        "rewards": {"r": reward},
        "total": reward,
        "length": length,
        "truncated": truncated,
    }


def test_metrics_of_an_evaluation_match_their_definitions():
    samples = [
        sample(0, 0, True, reward=1.0, length=1),
        sample(0, 1, False, reward=None, length=2),
        sample(0, 2, False, reward=0.0, length=3),
        sample(0, 3, False, reward=0.5, length=6, truncated=True),
        *[sample(1, index, False, reward=0.0, length=4) for index in range(4)],
        sample(0, 0, True, greedy=True, length=90, reward=90.0),
        sample(1, 0, False, greedy=True, length=90, reward=90.0),
    ]
    metrics = summarise(samples, ["r"], 4)
    assert metrics == pytest.approx(
        {
            "prompts": 2.0,
            "accuracy": 1 / 8,
            "reward": 1.5 / 7,
            "length": 28 / 8,
            "truncated": 1 / 8,
            "greedy_accuracy": 0.5,
            "rewards/r": 1.5 / 7,
            "pass_at_2": 0.25,
            "pass_at_4": 0.5,
        }
    )
    assert "greedy_accuracy" not in summarise(samples[:8], ["r"], 4)


def test_each_judged_reply_of_an_episode_counts_for_pass_at_k():
    """Self-play judges both sides, so there are twice as many as episodes."""
    both = [sample(0, index, right) for index in range(2) for right in (True, False)]
    assert summarise(both, ["r"], 2)["pass_at_2"] == pytest.approx(1 - 1 / 6)
    assert summarise([sample(0, 0, True)] * 4, ["r"], 2)["pass_at_2"] == 1.0
    few = [sample(0, 0, True), *both]
    assert summarise([{**each, "draw": n} for n, each in enumerate(few)], ["r"], 2)["accuracy"]


def test_metrics_of_an_evaluation_are_those_of_its_samples(lab):
    trainer = lab.trainer(evaluation={"prompts": 2, "samples": 4, "threshold": 0.5})
    evaluation = trainer.evaluate()
    drawn = [sample for sample in evaluation.samples if not sample["greedy"]]
    greedy = [sample for sample in evaluation.samples if sample["greedy"]]
    assert (len(drawn), len(greedy)) == (8, 2)
    for sample in evaluation.samples:
        value = lab.ones([sample["completion"]])[0]
        assert sample["rewards"] == {"ones": value}
        assert sample["right"] == (value >= 0.5)
        assert sample["length"] == len(sample["completion"])
    right = [sample["right"] for sample in drawn]
    assert evaluation.metrics["accuracy"] == sum(right) / 8
    by_prompt = [right[:4], right[4:]]
    for k in (2, 4):
        subsets = [list(combinations(four, k)) for four in by_prompt]
        expected = sum(sum(map(any, sets)) / len(sets) for sets in subsets) / 2
        assert evaluation.metrics[f"pass_at_{k}"] == pytest.approx(expected)
    # Greedy sampling takes the most probable decision at each position.
    row = trainer.evaluator.draws[0].row
    assert greedy[0]["completion"] == "".join(
        map(str, trainer.policy._draw(row["id"], 0, "greedy"))
    )


def test_a_repeated_evaluation_is_equal_and_changes_neither_weights_nor_prompts(lab):
    trainer = lab.trainer(evaluation={"prompts": 2, "samples": 3})
    before = trainer.policy.table.detach().clone()
    first = trainer.evaluate()
    drawn = trainer.experience.prompts.state_dict()
    assert trainer.evaluate() == first
    assert torch.equal(trainer.policy.table, before)
    assert trainer.experience.prompts.state_dict() == drawn


def test_accuracy_is_that_of_the_reward_named_in_the_configuration(lab):
    rewards = [
        Reward(name="first", function=lambda completions: [9.0] * len(completions)),
        Reward(name="second", function=lambda completions: [1.9] * len(completions)),
    ]
    trainer = lab.trainer(reward=rewards, evaluation={"accuracy": "second", "threshold": 2.0})
    scores = trainer.scorer(lab.build(lab.rows(2), [[0], [1, 0]]))
    assert trainer.evaluator.accuracy.right(scores).tolist() == [False, False]


def reward_that(judges, name):
    """A reward of 0 and 1 that says whether it judges; None: it does not say."""

    def function(completions, **_):
        return [float(n % 2) for n in range(len(completions))]

    if judges is not None:
        function.judges = judges
    return Reward(name=name, function=function)


@pytest.mark.parametrize(
    ("section", "says", "name", "note"),
    [
        ({}, {"format": None, "answer": True, "length": False}, "answer", None),
        ({}, {"format": False, "math": True, "exact": True}, "math", "the first of 2 that tell"),
        ({"accuracy": "exact"}, {"math": True, "exact": True}, "exact", None),
        ({"accuracy": "format"}, {"format": None, "math": True}, "format", None),
        ({}, {"correct": None}, None, "set evaluation.accuracy: correct, or give it"),
        ({}, {"length": False}, None, None),
        ({"threshold": 0.5}, {"length": False}, "length", None),
        ({"threshold": 0.5}, {"length": False, "math": True}, "math", None),
    ],
)
def test_accuracy_is_the_reward_that_says_so(section, says, name, note):
    rewards = [reward_that(judges, label) for label, judges in says.items()]
    accuracy = Accuracy.of(EvaluationSection(**section), rewards)
    assert accuracy.name == name
    assert (accuracy.note is None) if note is None else (note in accuracy.note)
    # Rewards that are trained on come first.
    watched = [reward_that(True, "watched")]
    named = "accuracy" in section or any(says.values())
    expected = name if named else "watched"
    assert Accuracy.of(EvaluationSection(**section), rewards, watched).name == expected


def test_a_format_that_is_listed_first_is_no_accuracy(lab):
    """Its values are 0 and 1, too, and all of them 1."""

    def shaped(completions):
        return [1.0 for _ in completions]

    def right(completions):
        return [float(text[0] == 2) for text in completions]

    right.judges = True
    rewards = [Reward(name=f.__name__, function=f) for f in (shaped, right)]
    trainer = lab.trainer(reward=rewards, evaluation={"prompts": 2, "samples": 4})
    metrics = trainer.evaluate().metrics
    assert metrics["accuracy"] == metrics["rewards/right"] < metrics["rewards/shaped"] == 1
    step = lab.step(trainer)
    assert step["accuracy"] == pytest.approx(step["rewards/right"])


def test_without_a_judge_an_evaluation_has_rewards_but_no_accuracy(lab):
    """The reward `ones` counts symbols, so no completion is right or wrong."""
    trainer = lab.trainer(evaluation={"prompts": 2, "samples": 4})
    evaluation = trainer.evaluate()
    assert not {"accuracy", "greedy_accuracy", "pass_at_2", "unscored"} & evaluation.metrics.keys()
    assert {"reward", "greedy_reward"} <= evaluation.metrics.keys()
    assert {sample["right"] for sample in evaluation.samples} == {None}
    assert "accuracy" not in lab.step(trainer)


def test_an_unscored_completion_is_not_wrong():
    verdicts = [True, None, False, True]
    samples = [
        {"right": right, "greedy": False, "draw": n // 2, "length": 1, "truncated": False}
        | {"rewards": {"r": None if right is None else float(right)}, "total": None}
        for n, right in enumerate(verdicts)
    ]
    metrics = summarise(samples, ["r"], 2)
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["unscored"] == 1
    assert metrics["pass_at_2"] == 1.0  # of the one prompt whose completions were all scored


def test_values_of_log_extra_are_in_the_samples(lab):
    def reward(completions, log_extra):
        log_extra("symbols", [len(c) for c in completions])
        return [1.0 for _ in completions]

    trainer = lab.trainer(reward=reward, evaluation={"prompts": 2})
    samples = trainer.evaluate().samples
    assert all(s["extra"] == {"symbols": len(s["completion"])} for s in samples)


def test_mixed_precision_of_accelerate_is_refused(monkeypatch):
    assert processes.accelerator().mixed_precision == "no"
    monkeypatch.setattr(Accelerator, "mixed_precision", "bf16")
    with pytest.raises(UserError, match=r"bf16 mixed precision.*set policy\.precision"):
        processes.accelerator()


@pytest.mark.slow
def test_gradient_accumulation_of_accelerate_is_refused():
    """In a separate process, since accelerate never forgets such settings."""
    code = "from groupwise.kit import processes; processes.accelerator()"
    environment = {**os.environ, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "configured for 4 gradient accumulation steps" in result.stderr


def test_processes_that_accelerate_does_not_connect_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    processes.accelerator()  # a variable alone launches nothing
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="2 processes were launched, but accelerate does not c"):
        processes.accelerator()


def test_sharded_models_are_refused(monkeypatch):
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
    with pytest.raises(UserError, match=r"configured for FSDP, .* set train\.shard: true"):
        processes.accelerator()


def test_targets_receive_the_same_fields_on_one_process_as_on_several(lab, monkeypatch):
    trainer = lab.trainer()
    calls = []
    targets = trainer.algorithm.targets

    def recording_targets(scores, rollouts, answers):
        calls.append(rollouts)
        return targets(scores, rollouts, answers)

    monkeypatch.setattr(trainer.algorithm, "targets", recording_targets)
    lab.step(trainer)
    assert calls[0].sampler_log_probs is None
    assert not calls[0].trajectory
    assert not any(calls[0].prompts)
