"""Trainer: the parts of a run with their weights, its progress, and what is due next."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from groupwise.config.learners import SOLE
from groupwise.config.sections import RunConfig
from groupwise.episodes.threads import Threads
from groupwise.evaluation import Evaluation, Sample
from groupwise.evaluator.evaluator import Evaluator
from groupwise.experience.experience import Experience
from groupwise.experience.failing import Failing
from groupwise.experience.step import Step
from groupwise.kit import processes, progress
from groupwise.learning.learner import Learner
from groupwise.metrics.clock import Clock
from groupwise.metrics.footprint import Footprint
from groupwise.metrics.step_metrics import FAILED, VALUES, is_count, joined
from groupwise.policy import Policy
from groupwise.prompts.digests import digests
from groupwise.rewards import RunState, Scores
from groupwise.samples.chosen import chosen
from groupwise.scoring.scorer import Scorer
from groupwise.storage.training_samples import is_kept


@dataclass(frozen=True, kw_only=True)
class Due:
    """What follows a step, known before the step begins."""

    evaluation: bool
    checkpoint: bool


@dataclass(kw_only=True)
class Trainer:
    """The state of a run and its operations for the loop; it touches no files and no terminal.

    learners: by label, in the order of the configuration; step: steps done; seconds: the time of
    these steps, with evaluations between them, also of runs that this one resumed; elapsed: the
    same at the start of the current step, if there is a limit in minutes; prompts_state:
    of the prompts, after the last step; digests: of their rows; saved: when the last checkpoint was
    written, or the loop began.
    """

    config: RunConfig
    experience: Experience
    learners: Mapping[str, Learner]
    evaluator: Evaluator
    clock: Clock
    threads: Threads
    step: int = 0
    seconds: float = 0.0
    elapsed: float = 0.0

    def __post_init__(self) -> None:
        self.prompts_state: Mapping[str, Any] = self.experience.state_dict()
        self.digests = digests(self.experience.prompts, self.evaluator.draws)
        self.started = self.saved = self.began = time.monotonic()
        self.last_took = 0.0
        self.failing = Failing(self.config.train.max_failed)
        self.footprint = Footprint(self.experience.accelerator.device)
        # Weights kept before the first step are the initial ones, which a resumed run has anyway.
        self.kept_at_first = {n: dict(x.weights.changes) for n, x in self.learners.items()}

    @property
    def policies(self) -> Mapping[str, Policy]:
        """All policies of the run by label, also those that only sample."""
        return {n: sampling.policy for n, sampling in self.experience.sampler.samplings.items()}

    @property
    def averaged(self) -> Mapping[str, str | None]:
        """By label, the name of the kept weights to evaluate and save; None: the current ones."""
        return {label: learner.averaged for label, learner in self.learners.items()}

    def adopt_averages(self) -> None:
        """Leave in the policies what was evaluated and saved: the average, where there is one."""
        for learner in self.learners.values():
            if learner.averaged is not None:
                learner.weights.adopt(learner.averaged)

    def learn(self, step: Step) -> dict[str, Any]:
        """All learners' updates of a step; their metrics, as LABEL/name if there are several."""
        self.threads.adapt()
        metrics = {
            label: learner.learn(
                step.rollouts_of(label),
                step.scores,
                self.step,
                step.dummies[label],
                self.elapsed,
                rest=step.rest(label),
            )
            for label, learner in self.learners.items()
        }
        return flat(metrics)

    def samples(self, step: Step) -> list[Sample]:
        """The completions of the step that are kept, once it has been learned from; [] if it is
        none of those whose completions are. A collective."""
        settings = self.config.train.samples
        if settings is None or not is_kept(self.step + 1, settings.steps):
            return []
        return chosen(step, self.evaluator.accuracy, most=settings.per_step)

    @property
    def scorer(self) -> Scorer:
        return self.experience.scorer

    @property
    def state(self) -> RunState:
        prompts, accelerator = self.experience.prompts, self.experience.accelerator
        return RunState(
            global_step=self.step,
            max_steps=self.config.train.steps,
            epoch=self.prompts_state["position"] / len(prompts.source),
            is_world_process_zero=accelerator.is_main_process,
            is_local_process_zero=accelerator.is_local_main_process,
        )

    def begin(self) -> None:
        """Start to measure the time of steps."""
        self.saved = self.began = time.monotonic()
        self.digests = digests(self.experience.prompts, self.evaluator.draws)
        self.started = self.saved - self.seconds
        self.clock.take()

    @property
    def is_over(self) -> bool:
        """Whether all steps are done or the time is up; the same on all processes."""
        limit, steps = self.config.train.minutes, self.config.train.steps
        late = limit is not None and time.monotonic() - self.started >= 60 * limit
        return processes.any_process(late or self.step >= steps)

    def due(self) -> Due:
        """What is due at the end of the step that begins.

        Whether a checkpoint will be due by minutes is predicted from the time of the last step. The
        last step is evaluated and saved after the loop.
        """
        now = time.monotonic()
        self.last_took, self.began = now - self.began, now
        settings, step = self.config.train, self.step + 1
        progress.start(f"step {step} of {settings.steps}")
        if settings.minutes is not None:  # by one clock, since all processes must learn alike
            self.elapsed = processes.first(lambda: now - self.started)
        every, minutes = self.config.evaluation.every, settings.checkpoint_minutes
        end = self.began + self.last_took
        late = processes.any_process(minutes is not None and end - self.saved >= 60 * minutes)
        evaluates = bool(every and step % every == 0)
        saves = bool(settings.checkpoint_every and step % settings.checkpoint_every == 0)
        last = step >= settings.steps
        return Due(evaluation=evaluates and not last, checkpoint=(saves or late) and not last)

    def teach(self, step: Step) -> dict[str, float]:
        """Train the rewards that learn on the rollouts of the step."""
        with self.clock.time("reward"):
            return self.scorer.teach(
                step.rollouts,
                step.scores,
                self.state,
                watched=self.evaluator.watched,
                labelled=self._labelled,
            )

    def _labelled(self, name: str, scores: Scores) -> None:
        """Count the labels of a watched reward. A collective."""
        self.failing.judged(
            name,
            failed=processes.total(scores.failure_counts.get(name, 0)),
            values=processes.total(int((~scores.column(name).isnan()).sum())),
            what=f"step {self.step + 1}",
            why=processes.first_of(scores.failures).get(name, ""),
        )

    def end_step(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Finish a step: afterwards weights and prompts are as a checkpoint saves them.

        Returns the step's metrics, with those of the whole step added.
        """
        now, before = time.monotonic(), self.prompts_state
        weights = self.scorer.end_step(self.step, metrics)
        ended = {n: learner.end_step(self.step + 1) for n, learner in self.learners.items()}
        self.step += 1
        self.experience.end_step()
        self.prompts_state = self.experience.state_dict()
        self.seconds = now - self.started
        metrics = joined(metrics, flat(ended))
        decisions = metrics["sampled_decisions"]
        skipped = self.prompts_state["skipped"] - before["skipped"]
        self.failing.sampled(
            metrics[FAILED],
            metrics["sampled"],
            what=f"step {self.step}",
            why=self.experience.failures,
        )
        for name in self.scorer.names:
            self.failing.judged(
                name,
                failed=metrics.get(f"{FAILED}/{name}", 0),
                values=metrics[f"{VALUES}{name}"],
                what=f"step {self.step}",
                why=self.experience.failures.get(name, ""),
            )
        return {
            **{name: value for name, value in metrics.items() if not is_count(name)},
            **weights,
            "decisions_per_second": decisions / max(now - self.began, 1e-9),
            **self.footprint.take(),
            **({"threads": torch.get_num_threads()} if self.threads.adapts else {}),
            **({"skipped_prompts": skipped} if skipped else {}),
        }

    def evaluate(self) -> Evaluation:
        self.experience.make_way(self.averaged)
        progress.start(f"evaluation after step {self.step}" if self.step else "first evaluation")
        with self.clock.time("evaluate"):
            evaluation = self.evaluator(self.state, self.averaged)
        evaluation = replace(evaluation, seconds=self.clock.seconds["evaluate"])
        failed = sum(bool(sample.get("failed")) for sample in evaluation.samples)
        self.failing.sampled(
            failed,
            len(evaluation.samples),
            what=f"the evaluation after step {self.step}",
            why=self.evaluator.failures,
        )
        return evaluation

    def resume_at(self, *, step: int, seconds: float, prompts_state: Mapping[str, Any]) -> None:
        """Continue from the position of an earlier run."""
        self.step, self.seconds, self.elapsed = step, seconds, seconds
        self.experience.load_state_dict(prompts_state)
        self.prompts_state = self.experience.state_dict()


def unit(policies: Mapping[str, Policy]) -> str:
    """The word for decisions of these policies."""
    units = {policy.unit for policy in policies.values()}
    return units.pop() if len(units) == 1 else "decisions"


def flat(by_label: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Values of learners by name: `name` if there is one learner, else `LABEL/name`."""
    return {
        name if label == SOLE else f"{label}/{name}": value
        for label, values in by_label.items()
        for name, value in values.items()
    }
