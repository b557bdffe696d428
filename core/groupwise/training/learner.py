"""Learner: a policy, its algorithm and its optimizer; scored rollouts to changed weights."""

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
from groupwise.training.work import Lesson

AVERAGE = "average"
"""The name that the moving average of the weights is kept by."""


class Learner:
    """Makes the updates of a step.

    sampler: who drew the rollouts; where that is exact, what it said of them stands for what the
        policy would say.
    replay: gives earlier right completions to groups that have none.
    whole: whether no weight has changed since the last `end_step`, so that what a checkpoint would
        hold is the end of a step. updates: those that changed weights so far.
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
        # After the policy has moved: on some devices its parameters are others by then.
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
        """The name of the weights to evaluate and save by; None for the present ones."""
        return None if self.settings.ema is None else AVERAGE

    def learn(self, lesson: Lesson, step: int, spare: Rollouts | None = None) -> dict[str, Any]:
        """All updates that a step's rollouts give.

        step: training steps made so far; spare: a rollout for passes without effect, while other
        processes have more. Metrics are means over the updates, `skipped_updates` a
        count; mismatch is that of the first, before any weight has moved.
        """
        replayed, further = None, dict[str, float]()
        if self.replay is not None:
            rollouts, scores, replayed, further = self.replay.fill(lesson.rollouts, lesson.scores)
            lesson = Lesson(rollouts=rollouts, scores=scores)
        rollouts = lesson.rollouts
        plan = self._updates(rollouts) * self.settings.epochs
        others = self.algorithm.samples_with is not None or self._is_older(rollouts, step)
        exact = self.sampler.exact and not others
        answers = self._answers(rollouts, plan, exact=exact, spare=spare)
        corrected = others or not (self.sampler is self.policy or self.sampler.exact)
        if corrected:
            self._check_log_probs(rollouts)
        # A state that `targets` changes, or replay, is that of no whole step until this one ends.
        stateless = self.replay is None and not isinstance(self.algorithm, HasState)
        self.whole = self.whole and stateless
        measured: list[dict[str, float]] = []
        for number, rows in enumerate(plan):
            part = lesson.select(rows)
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
                apart=None if replayed is None else replayed[rows],
            )
            measured.append(metrics | self._apply(step))
        of = {name: [m[name] for m in measured if name in m] for m in measured for name in m}
        means = {name: _mean(values) for name, values in of.items()}
        # A policy of a chain may have received no prompt that it can take.
        skipped = math.fsum(of.get("skipped_updates", ()))
        return {**means, "skipped_updates": skipped, **further}

    def end_step(self, step: int) -> None:
        """After `step` steps: what the algorithm does between them."""
        self.whole = False
        self.algorithm.end_step(self.policy, step)
        self.whole = True

    # ---- answers by other weights than those of an update

    def _answers(
        self,
        rollouts: Rollouts,
        plan: Sequence[Tensor],
        *,
        exact: bool,
        spare: Rollouts | None,
    ) -> dict[str, Tensor]:
        """[B, T, ...] on the CPU: what the reference says, and what the policy says by now.

        The policy answers for those rollouts alone that a later update compares with it.

        exact: whether the sampler's log-probs are the policy's own; spare: for passes without use.
        """
        algorithm = self.algorithm
        answers: dict[str, Tensor] = {}
        if algorithm.reference:
            with self.policy.using("reference"):
                of_reference = self.updater.answers(rollouts, algorithm.reference, spare=spare)
                answers |= _named("reference", of_reference)
        seen = {name.removeprefix("old_") for name in algorithm.sees if name.startswith("old_")}
        later = torch.cat([torch.empty(0, dtype=torch.int64), *plan[1:]]).unique()
        names = algorithm.old | seen if len(plan) > 1 else seen
        rows = torch.arange(len(rollouts)) if seen else later
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
        """Whether any of them, on any process, was drawn by older weights than the present."""
        versions = rollouts.versions
        older = processes.any_process(versions is not None and bool((versions < step).any()))
        if older and not self.algorithm.corrects:
            raise UserError(
                "rollouts of older weights need an algorithm that corrects for them; this one "
                "does not (of grpo and its kin, set algorithm.importance: token)"
            )
        return older

    def _check_log_probs(self, rollouts: Rollouts) -> None:
        """Raise UserError where the algorithm would correct, and the sampler said nothing."""
        weighs = self.algorithm.corrects and "log_probs" in self.algorithm.needs
        if weighs and rollouts.sampler_log_probs is None:
            raise UserError(
                f"sampler {type(self.sampler).__name__} states no log-probs "
                f"(`Rollouts.sampler_log_probs`), by which the algorithm would correct for another "
                f"sampler or for older weights; with algorithm.importance: none (of grpo and its "
                f"kin) it does not correct, which train.ahead: 1 does not allow"
            )

    # ---- updates

    def _updates(self, rollouts: Rollouts) -> list[Tensor]:
        """Our rows of each update: whole groups, in the order they were drawn."""
        groups = rollouts.groups.cpu()
        parts = processes.union(groups).tensor_split(self.settings.updates_per_rollout)
        return [torch.isin(groups, part).nonzero().flatten() for part in parts if len(part)]

    def _apply(self, step: int) -> dict[str, float]:
        """One optimizer step; what the gradient and the learning rate were."""
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
    """The mean of those that are finite: the norm of a gradient that was skipped is not."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
