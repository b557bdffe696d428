"""Trainer: the parts of a run with their weights, how far it has come, and what is due."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.config.learners import SOLE
from groupwise.config.sections import RunConfig
from groupwise.evaluation import Evaluation
from groupwise.policy import Policy
from groupwise.rewards import RunState
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.teaching import teach
from groupwise.training.clock import Clock
from groupwise.training.evaluator import Evaluator
from groupwise.training.experience import Experience, Scored
from groupwise.training.learner import Learner
from groupwise.training.step_metrics import joined


@dataclass(frozen=True, kw_only=True)
class Due:
    """What follows a step, known before it begins: last, that it is the last of the run."""

    evaluation: bool
    checkpoint: bool
    last: bool

    @property
    def nothing(self) -> bool:
        """The next step follows at once, so its rollouts may be sampled ahead."""
        return not (self.evaluation or self.checkpoint or self.last)


@dataclass(kw_only=True)
class Trainer:
    """What the loop of a run works with; knows no file and no screen.

    learners: by label, in the order of the configuration; step: steps made; seconds: those they
    took, evaluations between them and the runs that this one resumed included; place: where the
    prompts stood at the end of the last step; saved: when the last checkpoint was written, or the
    loop began.
    """

    config: RunConfig
    experience: Experience
    learners: Mapping[str, Learner]
    evaluator: Evaluator
    clock: Clock
    step: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.place: Mapping[str, Any] = self.experience.state_dict()
        self.started = self.saved = self.began = time.monotonic()
        self.last_took = 0.0
        # Weights kept before the first step are those a run starts from: a resumed one has them.
        self.kept_at_first = {n: dict(x.policy.changes) for n, x in self.learners.items()}

    @property
    def learner(self) -> Learner:
        """That of a run of one."""
        (learner,) = self.learners.values()
        return learner

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    @property
    def algorithm(self) -> Algorithm:
        return self.learner.algorithm

    @property
    def policies(self) -> Mapping[str, Policy]:
        """All of the run, those that only sample, too, by label."""
        return {n: sampling.policy for n, sampling in self.experience.team.samplings.items()}

    @property
    def averaged(self) -> Mapping[str, str | None]:
        """By label, the weights to evaluate and save by; None for the present ones."""
        return {label: learner.averaged for label, learner in self.learners.items()}

    def learn(self, scored: Scored) -> dict[str, Any]:
        """The updates of a step by all learners; the metrics of one, or by LABEL/name of each."""
        learned = {
            label: learner.learn(scored.lessons[label], self.step, scored.spares[label])
            for label, learner in self.learners.items()
        }
        return flat(learned)

    @property
    def scorer(self) -> Scorer:
        return self.experience.scorer

    @property
    def state(self) -> RunState:
        prompts, accelerator = self.experience.prompts, self.experience.accelerator
        return RunState(
            global_step=self.step,
            max_steps=self.config.train.steps,
            epoch=self.place["position"] / len(prompts.source),
            is_world_process_zero=accelerator.is_main_process,
            is_local_process_zero=accelerator.is_local_main_process,
        )

    def begin(self) -> None:
        """From here on the time of the steps is taken."""
        self.saved = self.began = time.monotonic()
        self.started = self.saved - self.seconds
        self.clock.take()

    @property
    def is_over(self) -> bool:
        """Whether the steps, or the time, are used up; the same on all processes."""
        limit, steps = self.config.train.minutes, self.config.train.steps
        late = limit is not None and time.monotonic() - self.started >= 60 * limit
        return processes.any_process(late or self.step >= steps)

    def due(self) -> Due:
        """What is due at the end of the step that begins.

        A checkpoint that is due by minutes is foreseen from how long the last step took. The last
        step is evaluated and saved when the loop has ended.
        """
        now = time.monotonic()
        self.last_took, self.began = now - self.began, now
        settings, step = self.config.train, self.step + 1
        every, minutes = self.config.evaluation.every, settings.checkpoint_minutes
        end = self.began + self.last_took
        late = processes.any_process(minutes is not None and end - self.saved >= 60 * minutes)
        evaluates = bool(every and step % every == 0)
        saves = bool(settings.checkpoint_every and step % settings.checkpoint_every == 0)
        last = step >= settings.steps
        return Due(
            evaluation=evaluates and not last, checkpoint=(saves or late) and not last, last=last
        )

    def teach(self, scored: Scored) -> dict[str, float]:
        """Rewards that learn see the step, those that name a watched reward with its labels."""
        watched, state = self.evaluator.watched, self.state
        with self.clock.time("reward"):
            return teach(self.scorer, watched, scored.rollouts, scored.scores, state)

    def end_step(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The step is made: weights and prompts stand as a checkpoint has them.

        Returns the step's metrics with those of the whole step.
        """
        now, before = time.monotonic(), self.place
        counted = self.scorer.end_step(self.step, metrics)
        ended = {label: one.end_step(self.step + 1) for label, one in self.learners.items()}
        self.step += 1
        self.place = self.experience.state_dict()
        self.seconds = now - self.started
        metrics = joined(metrics, flat(ended))
        decisions = metrics["sampled_decisions"]
        skipped = self.place["skipped"] - before["skipped"]
        return {
            **{name: value for name, value in metrics.items() if name != "sampled_decisions"},
            **counted,
            "decisions_per_second": decisions / max(now - self.began, 1e-9),
            **({"skipped_prompts": skipped} if skipped else {}),
        }

    def evaluate(self) -> Evaluation:
        self.experience.drop()  # a time limit may come while rollouts are in flight
        with self.clock.time("evaluate"):
            return self.evaluator(self.state, self.averaged)

    def go_on(self, *, step: int, seconds: float, place: Mapping[str, Any]) -> None:
        """Take up where a run was."""
        self.step, self.seconds = step, seconds
        self.experience.load_state_dict(place)
        self.place = self.experience.state_dict()


def flat(by_label: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Values of learners by name: of a run of one its own, else `LABEL/name`."""
    return {
        name if label == SOLE else f"{label}/{name}": value
        for label, values in by_label.items()
        for name, value in values.items()
    }
