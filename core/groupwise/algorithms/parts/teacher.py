"""Teacher: learn from a frozen policy, on the policy's own rollouts (on-policy distillation)."""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.composed import Composed, Options
from groupwise.rollouts import LogProbs

GAUSSIAN = frozenset({"mean", "std"})


class Teacher(Composed):
    """Takes the policy towards a teacher, if the run has one, by the reverse KL of each decision.

    Of the policy's log-probs (text), the advantage of a decision is

        A + teacher_weight (log pi_teacher - log pi_old)

    On-policy distillation (arXiv:2306.13649 with the reverse KL on the student's samples), beside a
    reward as in KDRL (arXiv:2506.02208). In a step's first update its gradient is, in expectation,
    that of A and of -teacher_weight KL(pi || teacher), decision by decision.

    Of Gaussians (images) the KL has a closed form, which the loss then contains in place of a
    sample of it: teacher_weight |mean - teacher's mean|^2 / (2 std^2), DiffusionOPD,
    arXiv:2605.15055.
    """

    class Config(Options):
        teacher_weight: float = Field(
            1.0,
            gt=0,
            description="with a `teacher`: weight of its log-ratio in the advantage; for policies "
            "of Gaussians, of the exact KL to it in the loss",
        )

    config: Config

    def take_teacher(self, provides: frozenset[str]) -> None:
        self.refills = False  # the teacher has a signal where rewards are equal
        if provides >= GAUSSIAN:
            self.teacher, self.needs = frozenset({"mean"}), self.needs | GAUSSIAN
        else:
            self.teacher = frozenset({"log_probs"})

    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        loss = super().loss(current, self._taught(batch))
        if "mean" not in self.teacher:
            return loss
        kl = self.config.teacher_weight * self._teacher_kl(current, batch)
        return loss + torch.where(batch["mask"], kl * batch["weights"], 0.0)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """With a teacher also `teacher_kl`, in nats: the exact KL to it, or its estimate k1."""
        measured = super().measure(current, self._taught(batch))
        if not self.teacher:
            return measured
        return {**measured, "teacher_kl": self._teacher_kl(current, batch)}

    def _taught(self, batch: Batch) -> Batch:
        """The batch with the teacher's log-ratio in the advantages, [b, t]."""
        if "log_probs" not in self.teacher:
            return batch
        towards = objective.token_log_ratio(
            batch["teacher_log_probs"], batch["old_log_probs"], batch["mask"]
        )
        advantages = objective.per_decision(batch["advantages"])
        return {**batch, "advantages": advantages + self.config.teacher_weight * towards}

    def _teacher_kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: KL(policy || teacher) of each decision."""
        if "mean" in self.teacher:
            mean, std = current.extra["mean"], current.extra["std"]
            return objective.gaussian_kl(mean, batch["teacher_mean"], std)
        assert current.log_probs is not None
        return objective.token_log_ratio(
            current.log_probs, batch["teacher_log_probs"], batch["mask"]
        )
