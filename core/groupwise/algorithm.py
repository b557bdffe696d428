"""Algorithm: what to learn from scored rollouts; GRPO and its kin are in `algorithms`.

An algorithm says two things: what every decision of an update aims at (`targets`, once, over all
of it) and what a decision costs (`loss`, micro-batch by micro-batch).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from groupwise.rollouts import LogProbs, Rollouts

if TYPE_CHECKING:
    from groupwise.policy import Policy
    from groupwise.rewards import Scores

Batch = Mapping[str, Tensor]


class Algorithm(ABC):
    """What to learn from scored rollouts.

    needs: what the policy must provide; checked before the run. Without "log_probs" in it, none
        are computed for this algorithm, and `old` must not name them.
    old: what the policy said before the step's first update: "log_probs" puts `old_log_probs` into
        the batch, the name of one of the policy's extras ("mean") `old_mean`. In the first update
        they are the present ones without gradient, so a ratio is 1 there and nothing is computed.
    reference: what the weights kept as "reference" say: `reference_log_probs`, `reference_mean`.
    moves_reference: True when `end_step` keeps or blends the reference anew, so that a policy needs
        a copy of it.
    sees: what `targets` receives: "old_" and a name ("old_value"), for which a pass of its own is
        made before the first update, or "reference_" and one of those in `reference`.
    couples_decisions: True when the loss of one decision depends on others of its rollout (a
        sequence-level ratio), so that a micro-batch must hold whole rollouts.
    smallest_group: the least `train.group_size` that it can learn from: 2 where it compares the
        completions of a prompt, 1 where it does not.
    refills: True to replace groups of equal reward by fresh ones while sampling.
    corrects: True when the loss weighs decisions by how likely the policy was to take them against
        the sampler that took them (`sampler_log_probs` in the batch, which a sampler other than
        the policy must then state); rollouts of older weights require it.
    samples_with: the name of kept weights to draw training rollouts with; None for the present.
    mismatch_limit: nats by which the sampler's log-probs may be from the policy's, on average over
        decisions, before the run warns.
    """

    needs: frozenset[str] = frozenset({"log_probs"})
    old: frozenset[str] = frozenset({"log_probs"})
    reference: frozenset[str] = frozenset()
    moves_reference: bool = False
    sees: frozenset[str] = frozenset()
    couples_decisions: bool = False
    smallest_group: int = 2
    refills: bool = False
    corrects: bool = False
    samples_with: str | None = None
    mismatch_limit: float = 0.05

    @property
    def answers(self) -> frozenset[str]:
        """All that it asks a policy for: of now, of before the updates and of the reference."""
        seen = {name.partition("_")[2] for name in self.sees}
        return self.needs | self.old | self.reference | seen

    @abstractmethod
    def targets(
        self, scores: "Scores", rollouts: Rollouts, answers: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Tensors [B] or [B, T], float32, over a whole update and all processes, on the CPU.

        rollouts: `groups`, `mask`, `truncated` and `versions` alone; prompts, completions, facts
            and trajectory stay with the process that sampled them, and are empty here.
        answers: the [B, T] tensors that `sees` names.

        `weights` [B, T] is required; a rollout whose `weights` are all 0 or which `active` leaves
        out gets no backward pass.
        """

    def dead(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B] bool: this algorithm learns nothing from the rollout's group.

        Such groups are what `refills` replaces and the metric `zero_variance` counts. By default
        those of equal outcomes and steps. rollouts: as in `targets`, those of this process.
        """
        return scores.dead(rollouts.groups)

    @abstractmethod
    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t], already weighted: the update's loss is its plain sum over micro-batches.

        batch: the rows and decisions of `targets`, of `mask`, of what `old` and `reference` name,
        and `sampler_log_probs` where the sampler said any.
        """

    def check(self, policy_config: Any) -> None:  # noqa: B027
        """Raises UserError where it does not fit the policy's `Config`; called by `groupwise check`
        and before a run builds the policy."""

    def prepare(self, policy: "Policy") -> None:  # noqa: B027
        """Called once before the run: take from the policy what the algorithm must know, keep
        weights (`policy.keep`) it will need."""

    def end_step(self, policy: "Policy", step: int) -> Mapping[str, float] | None:
        """Called after each step's updates, the first step being 1: blend or keep weights, say.

        What it returns is among the step's metrics.
        """
        return None

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: the rollouts that can have a gradient at all."""
        return (targets["weights"] != 0).any(dim=1)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t] per-decision quantities worth logging; their means over decisions are."""
        return {}

    def look(self, metrics: Mapping[str, Any]) -> str | None:
        """A warning that a step's metrics give reason for, or None; a run shows the first."""
        return None
