"""Algorithm: what to learn from scored rollouts; GRPO and its kin are in `algorithms`.

An algorithm says two things: what every decision of an update aims at (`targets`, once, over all
of it) and what a decision costs (`loss`, micro-batch by micro-batch).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from groupwise import objective
from groupwise.rollouts import LogProbs, Rollouts

if TYPE_CHECKING:
    from groupwise.policy import Policy
    from groupwise.rewards import Scores

Batch = Mapping[str, Tensor]


class Algorithm(ABC):
    """What to learn from scored rollouts.

    needs: what the policy must provide; checked before the run.
    couples_decisions: True when the loss of one decision depends on others of its rollout (a
        sequence-level ratio), so that a micro-batch must hold whole rollouts.
    refills: True to replace groups of equal reward by fresh ones while sampling.
    reference: what the reference is asked for: "log_probs" puts `reference_log_probs` into the
        batch, the name of one of the policy's extras ("mean") `reference_mean`.
    """

    needs: frozenset[str] = frozenset({"log_probs"})
    couples_decisions: bool = False
    refills: bool = False
    reference: frozenset[str] = frozenset()

    @abstractmethod
    def targets(self, scores: "Scores", rollouts: Rollouts) -> Mapping[str, Tensor]:
        """Tensors [B] or [B, T], float32, over a whole update and all processes, on the CPU.

        rollouts: `groups`, `mask` and `truncated` alone; prompts, completions, facts, log-probs and
            trajectory stay with the process that sampled them, and are empty here.

        `weights` [B, T] is required; a rollout whose `weights` are all 0 or which `active` leaves
        out gets no backward pass.
        """

    @abstractmethod
    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t], already weighted: the update's loss is its plain sum over micro-batches.

        batch: the rows and decisions of `targets`, `mask`, `old_log_probs` and what
        `reference` asked for.
        """

    def check(self, policy_config: Any) -> None:  # noqa: B027
        """Raises UserError where it does not fit the policy's `Config`; called by `groupwise check`
        and before a run builds the policy."""

    def prepare(self, policy: "Policy") -> None:  # noqa: B027
        """Called once before the run, to take from the policy what the algorithm must know."""

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: the rollouts that can have a gradient at all."""
        return (targets["weights"] != 0).any(dim=1)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t] per-decision quantities worth logging; their means over decisions are."""
        return {}

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the importance log-ratio of each decision, 0 outside the mask; variants override
        this. At the first update after sampling it must be 0, which every run measures."""
        assert current.log_probs is not None
        return objective.token_log_ratio(current.log_probs, batch["old_log_probs"], batch["mask"])
