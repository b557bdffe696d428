"""Trainer: the loop of GRPO. Sample groups, score them, learn from the scores, look, go on."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.config.sections import TrainSection
from groupwise.evaluation import Evaluation
from groupwise.policy import Policy
from groupwise.prompts.draws import Draw, Prompts
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.run.interruption import interruptible
from groupwise.training import processes, step_metrics
from groupwise.training.average import Average
from groupwise.training.clock import Clock
from groupwise.training.evaluator import Evaluator, sample_draws
from groupwise.training.optimizer import Optimizer
from groupwise.training.schedule import schedule
from groupwise.training.scorer import Scorer
from groupwise.training.update import Updater

OnStep = Callable[[int, dict[str, Any]], None]
OnEvaluation = Callable[[int, Evaluation], None]


class Trainer:
    """Trains `policy` from step to step; knows no plugin, no file and no screen.

    seed: names every sample, with the draw of its prompt and its index in the group.
    evaluate_every: steps between evaluations; 0 for none.
    whole: whether weights and prompts stand at the end of a step, as a checkpoint wants them;
        drawn: the place in the prompts at the end of the last step.
    seconds_trained: those of `fit`, and of the runs that this one resumed.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        algorithm: Algorithm,
        rewards: Scorer,
        prompts: Prompts,
        settings: TrainSection,
        evaluator: Evaluator,
        accelerator: Accelerator,
        seed: int,
        evaluate_every: int = 0,
    ) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.rewards = rewards
        self.prompts = prompts
        self.settings = settings
        self.evaluator = evaluator
        self.accelerator = accelerator
        self.seed = seed
        self.evaluate_every = evaluate_every
        self.clock = Clock()
        self.step = 0
        self.seconds_trained = 0.0
        self.whole = True
        self._spare: Rollouts | None = None
        self._mark()
        model = accelerator.prepare(policy)
        # After the policy has moved: on some devices its parameters are others by then.
        self.optimizer = Optimizer(policy, settings, accelerator)
        self.average: Average | None = None
        if settings.ema is not None:
            self.average = Average(policy, decay=settings.ema, every=settings.ema_every)
        self.updater = Updater(
            policy=policy,
            model=model,
            algorithm=algorithm,
            accelerator=accelerator,
            budget=settings.microbatch,
            backpropagate=self.optimizer.backward,
        )

    def fit(
        self,
        on_step: OnStep,
        on_checkpoint: Callable[[], None],
        on_evaluation: OnEvaluation = lambda *_: None,
    ) -> bool:
        """Train to the last step or the time limit; False when a signal ended it before.

        on_step: called after each step with its metrics; on_evaluation, on_checkpoint: when one is
        due. A signal lets the step in progress finish, so that what is saved is a whole step.
        """
        saved = time.monotonic()
        started = saved - self.seconds_trained
        with interruptible() as asked_to_stop:
            while not processes.any_process(self._over(started)):
                metrics = self.train_step()
                self.seconds_trained = time.monotonic() - started
                if self.evaluate_every and self.step % self.evaluate_every == 0:
                    with self.clock.time("evaluate"), self.averaged():
                        evaluation = self.evaluator(self.policy, self.state)
                    on_evaluation(self.step, evaluation)
                    metrics |= evaluation.logged
                on_step(self.step, metrics | self.clock.take())
                if self._is_checkpoint_due(saved):
                    on_checkpoint()
                    saved = time.monotonic()
                if processes.any_process(asked_to_stop()):
                    return False
        return True

    def train_step(self) -> dict[str, Any]:
        """One step: `groups_per_step` groups sampled, scored and learned from."""
        started = time.perf_counter()
        self.policy.begin(self.step)
        rollouts, scores, metrics = self.collect()
        with self.clock.time("update"):
            metrics = step_metrics.joined(metrics, self.learn(rollouts, scores))
        self.rewards.refresh(rollouts, scores)
        self.step += 1
        decisions = metrics.pop("sampled_decisions")
        metrics["decisions_per_second"] = decisions / (time.perf_counter() - started)
        skipped = self.prompts.skipped - self.drawn["skipped"]
        if skipped:
            metrics["skipped_prompts"] = skipped
        self._mark()
        return metrics

    def averaged(self) -> AbstractContextManager[None]:
        """The averaged weights in the policy's place, where an average is kept."""
        return self.average.applied() if self.average is not None else nullcontext()

    # ---- experience

    def collect(self) -> tuple[Rollouts, Scores, dict[str, Any]]:
        """Rollouts and scores of a step; groups of equal reward are refilled when asked for."""
        wanted = self.settings.groups_per_step
        rollouts, scores = self._sample(self.prompts.take(wanted))
        metrics = self._describe(rollouts, scores)
        if not self.algorithm.refills:
            return rollouts, scores, metrics
        parts, extra = [(rollouts, scores)], 0
        for _ in range(self.settings.max_refills):
            missing = wanted - sum(processes.total(self._alive_groups(r, s)) for r, s in parts)
            if missing <= 0:
                break
            parts.append(self._sample(self.prompts.take(missing)))
            extra += missing
            metrics = step_metrics.with_round(metrics, self._describe(*parts[-1]))
        metrics["refilled_groups"] = extra
        return (*self._fill(parts), metrics)

    def _sample(self, draws: list[Draw]) -> tuple[Rollouts, Scores]:
        """This process's share of the draws, sampled and scored.

        A process without draws samples those of the first and throws them away: what processes do
        together, all of them must do.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        share = draws[rank::world]
        with self.clock.time("sample"):
            parts = sample_draws(
                self.policy,
                share or draws[:1],
                self.settings.group_size,
                seed=self.seed,
                space="train",
                batch=self.settings.sample_batch,
                purpose="train",
            )
            rollouts = Rollouts.concat(list(parts))
        with self.clock.time("reward"):
            scores = self.rewards(rollouts, self.state)
        rollouts = rollouts.with_facts_on_cpu()
        if world > 1:
            self._spare = rollouts.select([int(rollouts.lengths.argmax())])
        if not share:
            rollouts, scores = rollouts.select([]), scores.select(torch.empty(0, dtype=torch.int64))
        return rollouts, scores

    def _alive_groups(self, rollouts: Rollouts, scores: Scores) -> int:
        alive = ~scores.dead(rollouts.groups.cpu())
        return len(rollouts.groups.cpu()[alive].unique())

    def _fill(self, parts: list[tuple[Rollouts, Scores]]) -> tuple[Rollouts, Scores]:
        """The live groups of all rounds, filled up with dead ones of the first to the full count.

        What stays dead after the last round still counts in the loss's denominators.
        """
        rollouts = Rollouts.concat([part for part, _ in parts])
        scores = Scores.concat([part for _, part in parts])
        groups = rollouts.groups.cpu()
        dead = scores.dead(groups)
        alive, spare = processes.union(groups[~dead]), processes.union(groups[dead])
        room = max(0, self.settings.groups_per_step - len(alive))
        kept = torch.isin(groups, torch.cat([alive, spare[:room]]))
        return rollouts.select(kept), scores.select(kept)

    # ---- learning

    def learn(self, rollouts: Rollouts, scores: Scores) -> dict[str, float]:
        """All updates that a step's rollouts give; the ratio error is that of the first.

        Metrics are means over the updates, `skipped_updates` a count.
        """
        given = self._old_and_reference(rollouts)
        measured: list[dict[str, float]] = []
        for _ in range(self.settings.epochs):
            for rows in self._updates(rollouts):
                part = rollouts.select(rows)
                cut = {name: value[rows, : part.mask.shape[1]] for name, value in given.items()}
                metrics = self.updater.backward(part, scores.select(rows), cut, self._spare)
                measured.append(metrics | self._apply())
        of = {name: [m[name] for m in measured if name in m] for m in measured for name in m}
        means = {name: _mean(values) for name, values in of.items()}
        return means | {
            # The first with decisions: until then nothing moved. NaN where no update had any.
            "ratio_error": of.get("ratio_error", [math.nan])[0],
            "skipped_updates": math.fsum(of["skipped_updates"]),
        }

    def _old_and_reference(self, rollouts: Rollouts) -> dict[str, Tensor]:
        """What the sampler's and the reference's weights say of the rollouts, once a step."""
        old = rollouts.sampler_log_probs
        if old is None:
            old = self.updater.answers(rollouts, {"log_probs"}).get("log_probs")
        given = {} if old is None else {"old_log_probs": old}
        if self.algorithm.reference:
            with self.policy.using("reference"):
                answers = self.updater.answers(rollouts, self.algorithm.reference)
            given |= {f"reference_{name}": value for name, value in answers.items()}
        return {name: value.cpu() for name, value in given.items()}

    def _updates(self, rollouts: Rollouts) -> list[Tensor]:
        """Our rows of each update: whole groups, in the order they were drawn."""
        groups = rollouts.groups.cpu()
        parts = processes.union(groups).tensor_split(self.settings.updates_per_rollout)
        return [torch.isin(groups, part).nonzero().flatten() for part in parts if len(part)]

    def _apply(self) -> dict[str, float]:
        """One optimizer step; what the gradient and the learning rate were."""
        rate = self.settings.learning_rate * schedule(self.settings, self.step)
        metrics = self.optimizer.step(rate, number=self.step + 1, suspect=self.updater.suspect)
        if metrics.pop("updated"):
            self.whole = False
            if self.average is not None:
                self.average.update()
        return metrics

    # ---- looking

    def _describe(self, rollouts: Rollouts, scores: Scores) -> dict[str, Any]:
        judge = self.evaluator.judge
        judge.look(scores)
        judge.agree()
        right = None if judge.measures else judge.right(scores)
        return step_metrics.describe(rollouts, scores, right=right, logged=self.policy.logged)

    @property
    def state(self) -> RunState:
        return RunState(global_step=self.step, max_steps=self.settings.steps)

    def _is_checkpoint_due(self, saved: float) -> bool:
        """By steps, or by the minutes since the last, which all processes must agree on."""
        every, minutes = self.settings.checkpoint_every, self.settings.checkpoint_minutes
        late = minutes is not None and time.monotonic() - saved >= 60 * minutes
        return bool(every and self.step % every == 0) or processes.any_process(late)

    def _over(self, started: float) -> bool:
        """Whether the steps, or the time, are used up."""
        limit = self.settings.minutes
        late = limit is not None and time.monotonic() - started >= 60 * limit
        return late or self.step >= self.settings.steps

    def go_on(self, *, step: int, seconds: float, prompts: Mapping[str, int]) -> None:
        """Take up the place where a run was."""
        self.step, self.seconds_trained = step, seconds
        self.prompts.load_state_dict(prompts)
        self._mark()

    def _mark(self) -> None:
        """Note that a step has ended."""
        self.whole, self.drawn = True, self.prompts.state_dict()


def _mean(values: Sequence[float]) -> float:
    """The mean of those that are finite: the norm of a gradient that was skipped is not."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
