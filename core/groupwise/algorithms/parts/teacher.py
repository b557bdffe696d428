"""Teacher: learn from a frozen policy, on the policy's own rollouts (on-policy distillation)."""

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.part import Options, Part
from groupwise.rollouts import LogProbs

GAUSSIAN = frozenset({"mean", "std"})


class Teacher(Part):
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

    slot = "teacher"

    class Config(Options):
        teacher_weight: float = Field(
            1.0,
            gt=0,
            description="with a `teacher`: weight of its log-ratio in the advantage; for policies "
            "of Gaussians, of the exact KL to it in the loss",
        )

    config: Config

    def take_teacher(self, provides: frozenset[str]) -> None:
        whole = self.whole
        whole.refills = False  # the teacher has a signal where rewards are equal
        if provides >= GAUSSIAN:
            whole.teacher, whole.needs = frozenset({"mean"}), whole.needs | GAUSSIAN
        else:
            whole.teacher = frozenset({"log_probs"})

    def added(self, current: LogProbs, batch: Batch) -> Tensor | None:
        """[b, t]: the exact KL to a teacher of Gaussians, weighted; else None."""
        if "mean" not in self.whole.teacher:
            return None
        return self.config.teacher_weight * self._kl(current, batch)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """With a teacher `teacher_kl`, in nats: the exact KL to it, or its estimate k1."""
        return {"teacher_kl": self._kl(current, batch)} if self.whole.teacher else {}

    def seen(self, current: LogProbs, batch: Batch) -> Batch:
        """The batch with the teacher's log-ratio in the advantages, [b, t]."""
        if "log_probs" not in self.whole.teacher:
            return batch
        towards = objective.token_log_ratio(
            batch["teacher_log_probs"], batch["old_log_probs"], batch["mask"]
        )
        advantages = objective.per_decision(batch["advantages"])
        return {**batch, "advantages": advantages + self.config.teacher_weight * towards}

    def _kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: KL(policy || teacher) of each decision."""
        if "mean" in self.whole.teacher:
            mean, std = current.extra["mean"], current.extra["std"]
            return objective.gaussian_kl(mean, batch["teacher_mean"], std)
        assert current.log_probs is not None
        return objective.token_log_ratio(
            current.log_probs, batch["teacher_log_probs"], batch["mask"]
        )
