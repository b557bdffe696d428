"""Algorithm: the base class; GRPO and its variants are in `algorithms`.

An algorithm defines two things: `targets`, advantages and loss weights, computed over a whole
update; and `loss`, computed micro-batch by micro-batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.weights import REFERENCE, KeptWeights

Batch = Mapping[str, Tensor]
OBSERVATIONS = "observations"
"""The name in `target_inputs` of a mask, `Policy.observations`."""


class Algorithm(ABC):
    """Turns scored rollouts into a loss.

    needs: names of the outputs that `loss` reads; a forward pass computes only these. Without
        "log_probs" among them, `old` must not name these either.
    old: outputs of the policy before the step's first update: "log_probs" puts `old_log_probs` into
        the batch, the name of one of the policy's extras ("mean") `old_mean`. In the first update
        they are the current ones, detached, so the ratio is 1 there and costs no pass.
    reference: outputs of the weights kept as "reference": `reference_log_probs`, `reference_mean`.
    copies: further weights that are kept, by name, each with its outputs that the loss reads:
        {"sampling": {"velocity"}} puts `sampling_velocity` into the batch. They are kept at the
        start, and what `end_step` makes of them is saved in checkpoints.
    teacher: outputs of the teacher, on the policy's rollouts: `teacher_log_probs`, `teacher_mean`.
        `take_teacher` sets them.
    moves_reference: True if `end_step` keeps or blends the reference again, so that a policy must
        hold a copy of it.
    target_inputs: outputs that `targets` receives: "old_" and a name ("old_value"), computed by an
        extra pass before the first update; "reference_" and one of the names in `reference`; or
        "observations", the positions of `Policy.observations`.
    couples_decisions: True if the loss of a decision depends on others of its rollout (a
        sequence-level ratio); a micro-batch then holds whole rollouts.
    smallest_group: the least `train.group_size`: 2 if the algorithm compares the completions of a
        prompt, else 1.
    ranks_by_total: True if, of a group, a rollout with a higher weighted sum of rewards never has a
        lower advantage; where it is False, `train.keep` refuses several rewards.
    refills: True to replace groups of equal reward by fresh ones while sampling.
    corrects: True if the loss multiplies by importance weights, policy / sampler. The batch then
        has `sampler_log_probs`, which a sampler other than the policy must provide. Required for
        rollouts of older weights.
    samples_with: the name of kept weights that draw training rollouts; None for the current ones.
        Evaluations draw with the current or the averaged ones in any case.
    adapted: by name, numbers that change during a run, such as a `beta` with a target: metrics of
        every step, and saved in checkpoints.
    mismatch_limit: the run warns when |policy - sampler| of log-probs, averaged over decisions, is
        above this, in nats.
    """

    needs: frozenset[str] = frozenset({"log_probs"})
    old: frozenset[str] = frozenset({"log_probs"})
    reference: frozenset[str] = frozenset()
    copies: Mapping[str, frozenset[str]] = MappingProxyType({})
    teacher: frozenset[str] = frozenset()
    moves_reference: bool = False
    target_inputs: frozenset[str] = frozenset()
    couples_decisions: bool = False
    smallest_group: int = 2
    ranks_by_total: bool = True
    refills: bool = False
    corrects: bool = False
    samples_with: str | None = None
    adapted: MutableMapping[str, float] = MappingProxyType({})  # type: ignore[assignment]
    mismatch_limit: float = 0.05

    @property
    def importance_hint(self) -> str:
        """How it gets importance weights, as the end of a sentence; "" if it cannot have any."""
        own = hasattr(getattr(self, "config", None), "importance")
        return ", or set algorithm.importance: token" if own else ""

    @property
    def outputs(self) -> frozenset[str]:
        """All outputs of the policy that it uses: current, old and of kept weights."""
        kept = frozenset[str]().union(*self.kept_outputs.values())
        return self.needs | self.old | kept | self.old_for_targets

    @property
    def kept_outputs(self) -> Mapping[str, frozenset[str]]:
        """By name of the weights that are kept from the start, the outputs that the loss reads:
        those of the reference, if there is one, and of `copies`."""
        return {**({REFERENCE: self.reference} if self.reference else {}), **self.copies}

    @property
    def old_for_targets(self) -> frozenset[str]:
        """The outputs of the policy before the step's first update that `targets` receives."""
        old = (name for name in self.target_inputs if name.startswith("old_"))
        return frozenset(name.removeprefix("old_") for name in old)

    def with_decisions(self, rollouts: Rollouts, step: int) -> Rollouts:
        """The rollouts with the decisions that the updates of a step are made of.

        By default those that were sampled. For a policy whose decisions are chosen afterwards (the
        noise levels of noised copies of an image): return the rollouts with what its `forward`
        reads of them. Called once a step, before all passes, on each process with its own rollouts;
        draw by each rollout's own seed, so that processes and resuming change nothing. step:
        training steps done so far.
        """
        return rollouts

    def observe(self, scores: Scores, rollouts: Rollouts) -> None:  # noqa: B027
        """Called once a step with the rollouts of each update, before the `targets` that it is
        trained on: the place to count or to average, since `targets` may be called several times
        for the same rollouts, also before, to estimate what its passes cost.

        scores, rollouts: as in `targets`, with those that `train.keep` leaves out, and without
        those of other learners.
        """

    @abstractmethod
    def targets(
        self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Tensors [B] or [B, T], float32, for a whole update of all processes, on the CPU.

        rollouts: has only `groups`, `mask`, `truncated`, `ended`, `turns`, `roles` and `versions`;
            prompts, completions, facts and trajectory stay on the process that sampled them, and
            are empty here.
        inputs: the [B, T] tensors that `target_inputs` names.

        Called again for the same update where other rollouts are compared with its own: those of
        other learners, or those that `train.keep` leaves out; and in each of `train.epochs`. What
        is counted of rollouts is counted in `observe`.

        The result must have `weights` [B, T]. A rollout gets no backward pass if its `weights` are
        all 0 or if `active` is False for it.
        """

    def no_signal(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B] bool: True where the rollout's group teaches this algorithm nothing.

        `refills` replaces such groups, and the metric `zero_variance` counts them. By default they
        are the groups in which all rewards are equal. rollouts: as in `targets`, the groups on all
        processes that would be trained on together.
        """
        return scores.no_signal(rollouts.groups)

    @abstractmethod
    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t], already multiplied by `weights`: the loss of an update is the sum of all values.

        batch: `targets`, `mask`, and the tensors that `old`, `reference`, `copies` and `teacher`
        name, cut to this micro-batch; and `sampler_log_probs` if another sampler or older weights
        drew the rollouts.
        """

    def take_teacher(self, provides: frozenset[str]) -> None:
        """Called before all else if there is a `teacher`: name in `teacher` which of its outputs
        the loss reads. Raises UserError, by default, if the algorithm cannot learn from one.

        provides: the outputs of the policy.
        """
        raise UserError(f"{type(self).__name__} does not learn from a teacher; leave teacher out")

    def take_accuracy(self, name: str | None, threshold: float) -> None:  # noqa: B027
        """Called before a run with the name of the reward that tells right from wrong, None if none
        does, and its least value of a right completion; `Scores.at_least` compares with it."""

    def check(self, policy_config: Any) -> None:  # noqa: B027
        """Raise UserError if the algorithm does not fit the policy's `Config`. Called by `groupwise
        check` and before a run builds the policy."""

    def examine(self, policy_config: Any) -> Sequence[str]:
        """Notes of `groupwise check` on the algorithm with the policy's `Config`; loads no
        weights."""
        return ()

    def prepare(self, policy: Policy, weights: KeptWeights) -> None:  # noqa: B027
        """Called once before the run: read settings of the policy (`max_decisions`), keep weights
        that are needed later (`weights.keep`)."""

    def begin_step(self, step: int) -> None:  # noqa: B027
        """Called before the updates of each step; the first step is 0."""

    def after_updates(self, metrics: Mapping[str, float]) -> None:  # noqa: B027
        """Called after the updates of each step with their metrics, which are those of all
        processes, to change what is `adapted`."""

    def end_step(self, weights: KeptWeights, step: int) -> Mapping[str, float] | None:
        """Called after the updates of each step, to keep or blend weights; the first step is 1.

        Returns further metrics of the step, or None.
        """
        return None

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: the rollouts whose loss can have a gradient; others get no backward pass."""
        return (targets["weights"] != 0).any(dim=1)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """Quantities to log, [b, t] each; the metric is their mean over the decisions that are
        trained, those of rollouts with a backward pass, in all updates of a step."""
        return {}

    def warning(self, metrics: Mapping[str, Any]) -> str | None:
        """A warning about a step's metrics, or None. A run shows only the first one."""
        return None
