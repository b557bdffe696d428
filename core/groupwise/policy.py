"""Policy: anything that samples completions and computes the log-probs of its decisions.

A policy is an `nn.Module` whose forward *is* the log-prob, so accelerate can wrap it in DDP like
any other module. A policy that is too large for one device divides its weights among the processes
in `shard`.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from groupwise.kit.errors import UserError
from groupwise.preflight import Preflight
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Sampler

Decisions = slice
Outputs = frozenset[str]
"""Names of outputs of a policy's `forward`."""
Microbatch = tuple[Tensor, Decisions]


@dataclass(frozen=True)
class Uncopied:
    """Weights that a policy can return to without a copy of them.

    using: a context in which they are used; copies: the tensors that a copy would hold, by name.
    """

    using: Callable[[], AbstractContextManager[None]]
    copies: Callable[[], Mapping[str, Tensor]]


class Policy(nn.Module, Sampler, Preflight):
    """The interface between the core and a modality (text, images, ...).

    provides: outputs of `forward`: "log_probs", "entropy", "mean" and other extras.
    diversity: what makes the completions of a prompt differ more ("a higher temperature"), for a
        warning that they all have the same reward; "" if nothing does.
    unit: the word for decisions in progress lines ("tokens", "steps").
    greedy: whether "greedy" sampling differs from "evaluate". For a flow model it does not:
        evaluation has no noise to leave out.
    facts: the names of `Rollouts.facts`; a reward can take them as arguments, like columns.
    logged: numeric `facts`, each a mean over the decisions of its rollout; the mean over all
        decisions is a metric of steps and evaluations. By convention `entropy` is that of the
        policy.
    shown: `facts` that are in the samples of evaluations, and so in the report.
    optional_facts: further facts that cost time or memory: `sample` returns those that `prepare`
        named.
    algorithms: names of those made for such policies; a run that names none has a note on them.
    max_decisions: the most decisions that a rollout can have; None without a limit.
    notes: messages about how this policy runs, printed once at the start.
    scale_loss: True if gradients are computed in float16 and may underflow: the loss is then
        scaled by torch's GradScaler.
    rates: by prefix of parameter names, a factor of the learning rate (for a critic, say).
    unkept: prefixes of trained parameters that `KeptWeights` do not copy, since neither sampling
        nor a reference uses them (a critic, again).
    factored: True if trained weights are factors that the model multiplies with each other (LoRA):
        a mean of two copies is then not the mean of the two models.
    portable: whether another process with the same weights can make the passes of its rollouts; not
        if they need what only this one has, such as the graph of sampling.
    samples_apart: whether a completion takes as long to sample alone as in its group, as an image
        does, and depends on nothing but its row, its seed and its group's. Then several processes
        sample the completions of a group.
    mesh: the processes that the weights are divided among, as `shard` received it; None if each
        process has all weights.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"log_probs"})
    diversity: ClassVar[str] = ""
    unit: ClassVar[str] = "decisions"
    greedy: ClassVar[bool] = True
    facts: ClassVar[frozenset[str]] = frozenset()
    logged: ClassVar[frozenset[str]] = frozenset()
    shown: ClassVar[frozenset[str]] = frozenset()
    optional_facts: ClassVar[frozenset[str]] = frozenset()
    algorithms: ClassVar[tuple[str, ...]] = ()
    max_decisions: int | None = None
    notes: Sequence[str] = ()
    scale_loss: bool = False
    factored: bool = False
    portable: bool = True
    samples_apart: bool = False
    mesh: DeviceMesh | None = None
    rates: Mapping[str, float] = MappingProxyType({})
    unkept: tuple[str, ...] = ()

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide the weights among the processes of this mesh, and set `self.mesh`.

        mesh: of one dimension; or of two, ("replicate", "shard"), of which the rows are copies of
            each other. `fully_shard` takes both, and `groupwise.kit.processes.shard_of` says which
            part is this process's.

        Called before `place` if `train.shard` is set. No process should ever hold all weights:
        build the modules on `meta`; here, apply `torch.distributed.fsdp.fully_shard` to each block
        and to the root; load each process's own part in `place`. Outside `forward` and `sample`
        only that part is in memory, so set `reshard_after_forward=True` on the root, too (its
        default is False).

        `forward` then contains collectives that every process must join. The core therefore calls
        `forward` and `sample` equally often on each process, with equally many prompts, and
        exchanges and saves weights on all of them.

        Raises UserError if the policy cannot be sharded.
        """
        raise UserError(
            f"train.shard: {type(self).__name__} cannot be sharded; leave train.shard out, so that "
            f"each process holds all of its weights"
        )

    def prepare(self, *, outputs: Outputs, facts: frozenset[str]) -> None:
        """Called before `place`: what the run will read of this policy.

        outputs: of `forward`, in any pass; what only others need does not have to be loaded.
        facts: the `optional_facts` that are `shown` or that some reward takes as arguments, for
            `sample` to return.
        """

    def place(self, device: torch.device | str) -> None:
        """Move to the run's device, and determine whatever depends on it.

        Called once, before any other method except `shard` and `prepare`.
        """
        self.to(device)

    # ---- sampling: `sample` is `Sampler.sample`

    def follow(self, policy: nn.Module, name: str, version: int) -> None:
        """Nothing to do: a policy samples with the weights it has."""

    @classmethod
    def check_policy_class(cls, policy: type) -> None:
        """Raise UserError for other policies: this one draws only for itself."""
        if policy is not cls:
            raise UserError(f"sampler: {cls.__name__} is a policy, and draws only for itself")

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise UserError if training on rollouts of this other sampler would be wrong.

        For example, if the policy's settings cut the distribution (top-p) and the sampler cannot
        give log-probs of the cut one.
        """

    @classmethod
    def check_teacher(cls, config: Any, teacher: "type[Policy]", teacher_config: Any) -> None:
        """Raise UserError if this teacher's outputs on rollouts of the policy would mean nothing:
        another vocabulary, say. Called before any weights are loaded.

        config, teacher_config: the `Config` of each, None if it has none. By default the classes
        must be related.
        """
        if not issubclass(teacher, cls) and not issubclass(cls, teacher):
            raise UserError(
                f"expected a {cls.__name__}, as the policy is, since the teacher reads the "
                f"policy's rollouts; found {teacher.__name__}"
            )

    @classmethod
    def rehearsal(cls, config: Any) -> "Policy | None":
        """A `groupwise.rehearsal.Rehearsal`, with which `groupwise check` shows what this policy
        would read in an episode; None for none."""
        return None

    # ---- log-probs

    def __call__(
        self, rollouts: Rollouts, decisions: Decisions = slice(None), outputs: Outputs | None = None
    ) -> LogProbs:
        """`forward`, also where it has no parameter `outputs`: it then computes all of them."""
        if _takes_outputs(type(self)):
            return super().__call__(rollouts, decisions, outputs)
        return super().__call__(rollouts, decisions)

    @abstractmethod
    def forward(  # open, so that type checkers accept it with and without `outputs`
        self, rollouts: Rollouts, decisions: Decisions = slice(None), *args: Any, **kwargs: Any
    ) -> LogProbs:
        """Log-probs [b, t] of the given decisions of every rollout, with gradients.

        Values outside the mask are ignored, but must be finite. A third parameter, `outputs`, may
        be left out by a policy that always computes all that it provides: it receives the names of
        those in `provides` that will be read, None for all.
        """

    def observations(self, rollouts: Rollouts) -> Tensor:
        """[B, T] bool: the positions, none of them a decision, at which an environment's words
        stand that the policy has log-probs of: `observation_log_probs` [b, t], if it `provides`
        these. Called only where an algorithm needs them; none by default.
        """
        return torch.zeros_like(rollouts.mask)

    def with_constants(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with whatever `forward` treats as a constant of its gradient by intent.

        Override it if `forward` leaves out a part of the gradient deliberately: return rollouts
        whose trajectory holds that part as it is with the present weights, for `forward` to read
        also after the weights have changed. `groupwise.testing.check_policy` then compares the
        gradient with differences of this function. By default nothing is left out.
        """
        return rollouts

    def microbatches(
        self, rollouts: Rollouts, budget: int, *, cut_decisions: bool
    ) -> Sequence[Microbatch]:
        """Split rollouts into micro-batches that fit in memory, each (rows, decisions).

        budget: the most decisions in one, padding included; a single rollout may exceed it.
        cut_decisions: whether a rollout's decisions may be in different micro-batches.
        """
        extents = rollouts.extents
        order = torch.argsort(extents, descending=True, stable=True)
        parts: list[Microbatch] = []
        start = 0
        while start < len(order):
            longest = max(1, int(extents[order[start]]))
            rows = order[start : start + max(1, budget // longest)]
            parts.append((rows, slice(0, longest)))
            start += len(rows)
        return parts

    def costs(self, rollouts: Rollouts) -> Tensor:
        """[B], in any unit: what the passes of an update over each rollout cost. By it rollouts are
        dealt among the processes of a run; by default as many as it has positions."""
        return rollouts.extents

    def check_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise UserError for a row that this policy cannot answer; called once before a run.

        rows: of training and evaluation, read lazily; none for a later policy of a chain, whose
            prompts are written during the run.
        """

    def skips(self, row: Mapping[str, Any]) -> bool:
        """Whether a row must never be drawn (its prompt is too long, say); depends on the row only.

        The core leaves such rows out of training and evaluation, and counts them.
        """
        return False

    def begin(self, step: int) -> None:
        """Called before the rollouts of a training step are sampled; the first step is 0.

        For sampling that depends on the step (a moving window, say). With `train.ahead` it comes
        before the update of the previous step. A resumed run passes the same numbers, so no state
        must be saved for it.
        """

    # ---- other weights, for `KeptWeights`

    def exchanging(self) -> AbstractContextManager[None]:
        """A context in which `KeptWeights` put other weights in place of the trained ones, and at
        its end the trained ones back; for a policy that keeps results of passes."""
        return nullcontext()

    def uncopied(self) -> Uncopied | None:
        """The present weights, if the policy can return to them later without a copy; None by
        default. Called for the reference before the first update: with LoRA it is the model with
        its adapters switched off.
        """
        return None

    # ---- saving

    @property
    def card(self) -> Mapping[str, Any]:
        """Entries for the card (README.md) of the saved model.

        `base_model` (hub name or absolute path), `library_name`, `pipeline_tag`, and `usage`:
        Python code that loads the model, with `{path}` for its folder.
        """
        return {}

    def save_pretrained(self, path: Path) -> None:
        """Write the trained weights in the format that users load; the default is safetensors.

        Called on the first process only; for a sharded policy on all, of which the first writes.
        """
        from safetensors.torch import save_model

        path.mkdir(parents=True, exist_ok=True)
        save_model(self, str(path / "model.safetensors"))

    def try_saving(self) -> None:
        """Raise UserError if `save_pretrained` would fail; called before the first step.

        On each process, before anything is trained: an hour of training must not end with weights
        that nobody can write. Do what `save_pretrained` does, without the weights, in a folder of
        your own that is removed. By default nothing is tried.
        """


@cache
def _takes_outputs(policy: type[Policy]) -> bool:
    return "outputs" in inspect.signature(policy.forward).parameters
