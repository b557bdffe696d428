"""Learner: a policy with its algorithm and optimizer; turns scored rollouts into updates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.config.train import TrainSection
from groupwise.experience.extremes import extremes
from groupwise.experience.replay import Replay
from groupwise.kit import processes, progress
from groupwise.kit.errors import UserError
from groupwise.kit.metric_names import Family
from groupwise.learning import learning_rate
from groupwise.learning.batch import Batch, Update, nothing_of
from groupwise.learning.dealing import at_home, dealt
from groupwise.learning.optimizer import Optimizer
from groupwise.learning.outputs import outputs_before
from groupwise.learning.passes import passes
from groupwise.learning.share import Share
from groupwise.learning.update import Updater
from groupwise.metrics.tally import Tally
from groupwise.policy import Policy
from groupwise.record import Rollout
from groupwise.record.gather import gather, light, settle
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.sampler import Sampler
from groupwise.storage.state import HasState
from groupwise.weights import REFERENCE, KeptWeights

AVERAGE = "average"
"""The name under which the moving average of the weights is kept."""
TAKEN = frozenset({AVERAGE, REFERENCE, "old", "teacher", "sampler"})
"""Names that `Algorithm.copies` must not have."""


class Learner:
    """Makes the updates of a step.

    sampler: drew the rollouts; if it is exact, its log-probs are used as the policy's own.
    weights: kept weights of the policy: the reference, the moving average, those of the algorithm.
    teacher: a frozen policy, if the algorithm learns from one.
    replay: adds earlier right completions to groups that have too few.
    at_step_boundary: True if no weight has changed since the last `end_step`, so that a checkpoint
        taken now is that of the end of a step.
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
        weights: KeptWeights,
        teacher: Policy | None = None,
        replay: Replay | None = None,
    ) -> None:
        self.policy, self.algorithm, self.sampler = policy, algorithm, sampler
        self.settings, self.weights, self.replay = settings, weights, replay
        self.teacher, self.accelerator = teacher, accelerator
        self.at_step_boundary, self.updates = True, 0
        model = policy if policy.mesh is not None else accelerator.prepare(policy)
        # After the move to the device, which may replace parameters by new tensors.
        self.optimizer = Optimizer(policy, settings, accelerator)
        if clashing := algorithm.copies.keys() & TAKEN:
            raise ValueError(
                f"{type(algorithm).__name__}.copies: {min(clashing)!r} names other weights or "
                f"outputs of every run; choose another name"
            )
        for name in algorithm.kept_outputs:
            weights.keep(name)
        if settings.ema is not None:
            weights.keep(AVERAGE)
        algorithm.prepare(policy, weights)
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
        self,
        sampled: Sequence[Rollout],
        like: Scores,
        step: int,
        dummy: Rollouts | None = None,
        seconds: float = 0.0,
        *,
        rest: Sequence[Rollout] | None = None,
    ) -> dict[str, Any]:
        """Make all updates of a step, and write the advantages on the rollouts; returns metrics.

        sampled: the policy's rollouts, judged; like: scores of the same rewards; step: training
        steps done so far; dummy: a rollout for passes without effect, while other processes have
        more micro-batches; seconds: of the run before the step, for the learning rate; rest:
        rollouts of other learners in the same groups.
        """
        self.updater.dummy = dummy
        self.algorithm.begin_step(step)
        rate = self.rate(step, seconds)
        logged = {"learning_rate": rate, **self.algorithm.adapted}
        rest = None if rest is None else [rollout for rollout in rest if rollout.is_usable]
        chosen, left, replayed = self._chosen(sampled, like, step, rest=rest, dummy=dummy)
        updates = self._updates(chosen)
        if not updates:
            return {"skipped_updates": 0, **logged, **replayed}
        rollouts = gather(chosen) if chosen else nothing_of(sampled, dummy)
        settle(chosen, rollouts)
        rollouts = self.algorithm.with_decisions(rollouts, step)
        share = Share.of(chosen, rollouts, like, process=self.accelerator.process_index)
        batch = Batch(share=share, like=like, rest=rest, left=left)
        batch, balance = self._dealt(batch, updates)
        metrics = self._train(batch, updates * self.settings.epochs, rate, step)
        for place, advantage in at_home(batch.share, batch.advantages, self.accelerator):
            chosen[place].advantage = None if math.isnan(advantage) else advantage
        self.algorithm.after_updates(metrics)
        return {**metrics, **logged, **replayed, **balance}

    def _chosen(
        self,
        sampled: Sequence[Rollout],
        like: Scores,
        step: int,
        *,
        rest: Sequence[Rollout] | None,
        dummy: Rollouts | None,
    ) -> tuple[list[Rollout], list[Rollout] | None, dict[str, float]]:
        """The rollouts to train on: those that did not fail, with replayed ones, without what lies
        between the best and the worst; what is left out so, None if nothing is; metrics of
        replay."""
        chosen, metrics = [rollout for rollout in sampled if rollout.is_usable], dict[str, float]()
        if self.replay is not None:
            columns = nothing_of(sampled, dummy).trajectory.keys()
            chosen, metrics = self.replay.fill(chosen, like, step, columns)
        if self.settings.keep is None:
            return chosen, None, metrics
        chosen, left = extremes(chosen, like, self.settings.keep.extremes, beside=rest or ())
        settle(left, light(left))
        return chosen, left, metrics

    def _dealt(self, batch: Batch, updates: Sequence[Tensor]) -> tuple[Batch, dict[str, float]]:
        """The batch with the rollouts whose passes this process makes, and how unequal the
        processes' work is."""
        share = batch.share
        if self.accelerator.num_processes == 1 or not self.policy.portable:
            return batch, {}
        costs = self.policy.costs(share.rollouts).cpu() if len(share) else torch.empty(0)
        costs = costs * passes(
            batch, updates, self.updater, epochs=self.settings.epochs, is_exact=self.sampler.exact
        )
        share, slowest = dealt(share, costs, updates, self.accelerator)
        return replace(batch, share=share), {"slowest_process": slowest}

    def _train(
        self, batch: Batch, plan: Sequence[Tensor], rate: float, step: int
    ) -> dict[str, float]:
        """Make the updates of these draws each; returns metrics."""
        rollouts, oldest = batch.rollouts, batch.oldest(step)
        others = self.algorithm.samples_with is not None or self._is_older(rollouts, step)
        # The sampler's log-probs stand for the policy's own where both are the same function.
        known_log_probs = rollouts.sampler_log_probs if self.sampler.exact and not others else None
        outputs = outputs_before(
            batch,
            plan,
            self.updater,
            self.weights,
            teacher=self.teacher,
            known_log_probs=known_log_probs,
        )
        corrected = others or not (self.sampler is self.policy or self.sampler.exact)
        if corrected:
            self._check_log_probs(rollouts)
        # `targets` may change the algorithm's state, and `fill` changes the replay's: a checkpoint
        # taken before the end of the step would be inconsistent.
        has_state = self.algorithm.adapted or isinstance(self.algorithm, HasState)
        stateless = self.replay is None and not has_state
        self.at_step_boundary = self.at_step_boundary and stateless
        tally = Tally()
        tally.total("skipped_updates", 0)
        for number, draws in enumerate(plan):
            update = batch.update(
                draws,
                outputs,
                repeated=number >= len(plan) // self.settings.epochs,
                first=number == 0,
                corrected=corrected,
                compared=known_log_probs is None,
                stale=oldest < step,
            )
            targets = self.updater.targets(update)
            batch.note_advantages(draws, update.rollouts.mask, targets)
            shown = f"update {number + 1} of {len(plan)}" if len(plan) > 1 else "update"
            with progress.doing(shown):
                tally.add(self._make(update, targets, rate, step).finite())
        measured = self.sampler.mismatch(oldest) if oldest < step else {}
        of_sampler = {f"{Family.MISMATCH}/{name}": value for name, value in measured.items()}
        return {**tally.result(), **of_sampler}

    def rate(self, step: int, seconds: float) -> float:
        """The learning rate after `step` steps and so many seconds of the run."""
        return self.settings.learning_rate * learning_rate.factor(self.settings, step, seconds)

    def end_step(self, step: int) -> Mapping[str, float]:
        """Call the algorithm's `end_step` after `step` steps; returns its metrics."""
        self.at_step_boundary = False
        metrics = self.algorithm.end_step(self.weights, step) or {}
        self.at_step_boundary = True
        return metrics

    # ---- rollouts of other weights

    def _is_older(self, rollouts: Rollouts, step: int) -> bool:
        """Whether older weights than the current ones drew any of them, on any process."""
        versions = rollouts.versions
        older = processes.any_process(versions is not None and bool((versions < step).any()))
        if older and not self.algorithm.corrects:
            raise UserError(
                f"rollouts of older weights need an algorithm with importance weights, and "
                f"{type(self.algorithm).__name__} has none as configured; choose another sampler"
                f"{self.algorithm.importance_hint}"
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
                f"combined with train.ahead"
            )

    # ---- updates

    def _updates(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        """The draws of each update, of all processes, in order."""
        draws = torch.tensor([rollout.draw for rollout in rollouts], dtype=torch.int64)
        parts = processes.union(draws).tensor_split(self.settings.updates_per_rollout)
        return [part for part in parts if len(part)]

    def _make(self, update: Update, targets: Mapping[str, Tensor], rate: float, step: int) -> Tally:
        """One optimizer step; returns metrics.

        After an overflow of the scaled loss the gradient is computed again, with half the scale.
        """
        overflows = 0
        while True:
            tally = self.updater.accumulate(update, targets)
            result = self.optimizer.step(
                rate, number=step + 1, first_nonfinite=self.updater.first_nonfinite
            )
            if not result.overflow:
                break
            overflows += 1
        if result.updated:
            self.at_step_boundary = False
            self.updates += 1
            if self.settings.ema is not None and self.updates % self.settings.ema_every == 0:
                self.weights.blend(AVERAGE, self.settings.ema)
        tally.total("skipped_updates", int(result.skipped))
        if result.norm is not None:
            tally.mean("grad_norm", result.norm)
        if result.scale is not None:
            tally.mean("loss_scale", result.scale)
            tally.mean("zero_gradients", *result.zeros)
            tally.total("overflows", overflows)
        return tally

    def state_dict(self) -> dict[str, Any]:
        algorithm, replay = self.algorithm, self.replay
        return {
            "updates": self.updates,
            "kept": sorted(self.weights.changes),
            "optimizer": self.optimizer.state_dict(),
            **({"algorithm": algorithm.state_dict()} if isinstance(algorithm, HasState) else {}),
            **({"adapted": dict(algorithm.adapted)} if algorithm.adapted else {}),
            **({} if replay is None else {"replay": replay.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = state["updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.algorithm, HasState) and "algorithm" in state:
            self.algorithm.load_state_dict(state["algorithm"])
        for name, value in state.get("adapted", {}).items():
            if name in self.algorithm.adapted:
                self.algorithm.adapted[name] = value
        if self.replay is not None:
            self.replay.load_state_dict(state.get("replay"))
