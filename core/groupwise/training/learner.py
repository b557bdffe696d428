"""Learner: a policy with its algorithm and optimizer; turns scored rollouts into updates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.config.train import TrainSection
from groupwise.errors import UserError
from groupwise.policy import Policy
from groupwise.rollouts import Rollouts
from groupwise.sampler import Sampler
from groupwise.storage.state import HasState
from groupwise.training.optimizer import Optimizer
from groupwise.training.replay import Replay
from groupwise.training.schedule import schedule
from groupwise.training.update import Updater
from groupwise.training.work import TrainingBatch

AVERAGE = "average"
"""The name under which the moving average of the weights is kept."""


class Learner:
    """Makes the updates of a step.

    sampler: drew the rollouts; if it is exact, its log-probs are used as the policy's own.
    replay: adds earlier right completions to groups that have too few.
    whole: True if no weight has changed since the last `end_step`, so that a checkpoint taken now
        is that of the end of a step.
    updates: the number of updates so far that changed weights.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        settings: TrainSection,
        accelerator: Accelerator,
        sampler: Sampler,
        *,
        replay: Replay | None = None,
    ) -> None:
        self.policy, self.algorithm, self.sampler = policy, algorithm, sampler
        self.settings, self.replay = settings, replay
        self.whole, self.updates = True, 0
        model = policy if policy.mesh is not None else accelerator.prepare(policy)
        # After the move to the device, which may replace parameters by new tensors.
        self.optimizer = Optimizer(policy, settings, accelerator)
        if algorithm.reference:
            policy.keep("reference")
        if settings.ema is not None:
            policy.keep(AVERAGE)
        algorithm.prepare(policy)
        self.updater = Updater(
            policy=policy,
            model=model,
            algorithm=algorithm,
            accelerator=accelerator,
            budget=settings.microbatch,
            backpropagate=self.optimizer.backward,
        )

    @property
    def averaged(self) -> str | None:
        """The name of the kept weights to evaluate and save; None for the current ones."""
        return None if self.settings.ema is None else AVERAGE

    def learn(
        self, batch: TrainingBatch, step: int, spare: Rollouts | None = None
    ) -> dict[str, Any]:
        """Make all updates of a step.

        step: training steps done so far; spare: a rollout for dummy passes while other processes
        have more micro-batches. Returns metrics: means over the updates, except `skipped_updates`,
        a count, and mismatch, which is of the first update, before any weight has changed.
        """
        replayed, further = None, dict[str, float]()
        if self.replay is not None:
            rollouts, scores, replayed, further = self.replay.fill(
                batch.rollouts, batch.scores, step
            )
            batch = TrainingBatch(rollouts=rollouts, scores=scores)
        rollouts = batch.rollouts
        plan = self._updates(rollouts) * self.settings.epochs
        others = self.algorithm.samples_with is not None or self._is_older(rollouts, step)
        exact = self.sampler.exact and not others
        answers = self._answers(rollouts, plan, exact=exact, spare=spare)
        corrected = others or not (self.sampler is self.policy or self.sampler.exact)
        if corrected:
            self._check_log_probs(rollouts)
        # `targets` may change the algorithm's state, and `fill` changes the replay's: a checkpoint
        # taken before the end of the step would be inconsistent.
        stateless = self.replay is None and not isinstance(self.algorithm, HasState)
        self.whole = self.whole and stateless
        measured: list[dict[str, float]] = []
        for number, rows in enumerate(plan):
            part = batch.select(rows)
            width = part.rollouts.mask.shape[1]
            cut = {name: value[rows, :width] for name, value in answers.items()}
            metrics = self.updater.backward(
                part.rollouts,
                part.scores,
                cut,
                beside=part.beside,
                spare=spare,
                first=number == 0,
                corrected=corrected,
                replayed=None if replayed is None else replayed[rows],
            )
            measured.append(metrics | self._apply(step))
        by_name = {name: [m[name] for m in measured if name in m] for m in measured for name in m}
        means = {name: _mean(values) for name, values in by_name.items()}
        # Empty if a policy of a chain received no prompt that it could take.
        skipped = math.fsum(by_name.get("skipped_updates", ()))
        return {**means, "skipped_updates": skipped, **further}

    def end_step(self, step: int) -> Mapping[str, float]:
        """Call the algorithm's `end_step` after `step` steps; returns its metrics."""
        self.whole = False
        metrics = self.algorithm.end_step(self.policy, step) or {}
        self.whole = True
        return metrics

    # ---- outputs of the policy before the updates, and of the reference

    def _answers(
        self,
        rollouts: Rollouts,
        plan: Sequence[Tensor],
        *,
        exact: bool,
        spare: Rollouts | None,
    ) -> dict[str, Tensor]:
        """`reference_*` and `old_*` tensors [B, T, ...] on the CPU, computed before the updates.

        Old ones are computed only for rollouts of later updates, or for all if `targets` needs
        them.

        exact: whether the sampler's log-probs are the policy's own; spare: for dummy passes.
        """
        algorithm = self.algorithm
        answers: dict[str, Tensor] = {}
        if algorithm.reference:
            with self.policy.using("reference"):
                of_reference = self.updater.answers(rollouts, algorithm.reference, spare=spare)
                answers |= _named("reference", of_reference)
        for_targets = {n.removeprefix("old_") for n in algorithm.sees if n.startswith("old_")}
        later = torch.cat([torch.empty(0, dtype=torch.int64), *plan[1:]]).unique()
        names = algorithm.old | for_targets if len(plan) > 1 else for_targets
        rows = torch.arange(len(rollouts)) if for_targets else later
        if exact and "log_probs" in names and rollouts.sampler_log_probs is not None:
            answers["old_log_probs"] = rollouts.sampler_log_probs.cpu()
            names = names - {"log_probs"}
        chosen = rollouts.select(rows)
        parts = self.updater.answers(chosen, names, spare=spare) if names else {}
        for name, values in _named("old", parts).items():
            answers[name] = values.new_zeros(rollouts.mask.shape + values.shape[2:])
            answers[name][rows, : values.shape[1]] = values
        return answers

    def _is_older(self, rollouts: Rollouts, step: int) -> bool:
        """Whether older weights than the current ones drew any of them, on any process."""
        versions = rollouts.versions
        older = processes.any_process(versions is not None and bool((versions < step).any()))
        if older and not self.algorithm.corrects:
            raise UserError(
                "rollouts of older weights need an algorithm with importance weights; this one "
                "has none (grpo and its variants: set algorithm.importance: token)"
            )
        return older

    def _check_log_probs(self, rollouts: Rollouts) -> None:
        """Raise UserError if importance weights need log-probs that the sampler does not give."""
        weighs = self.algorithm.corrects and "log_probs" in self.algorithm.needs
        if weighs and rollouts.sampler_log_probs is None:
            raise UserError(
                f"sampler {type(self.sampler).__name__} gives no log-probs "
                f"(`Rollouts.sampler_log_probs`), which the algorithm needs for importance "
                f"weights; set algorithm.importance: none (grpo and its variants), which cannot be "
                f"combined with train.ahead: 1"
            )

    # ---- updates

    def _updates(self, rollouts: Rollouts) -> list[Tensor]:
        """This process's rows for each update: whole groups, in the order of their draws."""
        groups = rollouts.groups.cpu()
        parts = processes.union(groups).tensor_split(self.settings.updates_per_rollout)
        return [torch.isin(groups, part).nonzero().flatten() for part in parts if len(part)]

    def _apply(self, step: int) -> dict[str, float]:
        """One optimizer step; returns metrics of gradient and learning rate."""
        settings = self.settings
        rate = settings.learning_rate * schedule(settings, step)
        metrics = self.optimizer.step(rate, number=step + 1, suspect=self.updater.suspect)
        if metrics.pop("updated"):
            self.whole = False
            self.updates += 1
            if settings.ema is not None and self.updates % settings.ema_every == 0:
                self.policy.blend(AVERAGE, settings.ema)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        algorithm, replay = self.algorithm, self.replay
        return {
            "updates": self.updates,
            "optimizer": self.optimizer.state_dict(),
            **({"algorithm": algorithm.state_dict()} if isinstance(algorithm, HasState) else {}),
            **({} if replay is None else {"replay": replay.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = state["updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.algorithm, HasState) and "algorithm" in state:
            self.algorithm.load_state_dict(state["algorithm"])
        if self.replay is not None:
            self.replay.load_state_dict(state.get("replay"))


def _named(prefix: str, answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}_{name}": value for name, value in answers.items()}


def _mean(values: Sequence[float]) -> float:
    """The mean of the finite values: the norm of a skipped gradient is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
