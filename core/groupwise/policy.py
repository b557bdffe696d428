"""Policy: anything that samples completions and computes the log-probs of its decisions.

A policy is an `nn.Module` whose forward *is* the log-prob, so accelerate can wrap it in DDP like
any other module. A policy that is too large for one device divides its weights among the processes
in `shard`.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from groupwise.errors import UserError
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Sampler

Decisions = slice
Microbatch = tuple[Tensor, Decisions]


class Policy(nn.Module, Sampler):
    """The interface between the core and a modality (text, images, ...).

    provides: outputs of `forward`: "log_probs", "entropy", "mean" and other extras.
    unit: the word for decisions in progress lines ("tokens", "steps").
    greedy: whether "greedy" sampling differs from "evaluate". For a flow model it does not:
        evaluation has no noise to leave out.
    facts: the names of `Rollouts.facts`; a reward can take them as arguments, like columns.
    logged: numeric `facts`, each a mean over the decisions of its rollout; the mean over all
        decisions is a metric of steps and evaluations. By convention `entropy` is that of the
        policy.
    shown: `facts` that are in the samples of evaluations, and so in the report.
    optional_facts: further facts that cost time or memory: `sample` returns those in `requested`.
    requested: the `optional_facts` that are `shown`, or that some reward has in its signature by
        name; set by the core before anything is sampled.
    max_decisions: the most decisions that a rollout can have; None without a limit.
    notes: messages about how this policy runs, printed once at the start.
    needed: the outputs in `provides` that will be read; None for all. The core sets it to those of
        the algorithm before sampling, and to fewer for single passes. `forward` may skip others.
    scale_loss: True if gradients are computed in float16 and may underflow: the loss is then
        scaled by torch's GradScaler.
    changes: by name of kept weights, how often they were kept or blended.
    rates: by prefix of parameter names, a factor of the learning rate (for a critic, say).
    unkept: prefixes of trained parameters that `keep` does not copy, since neither sampling nor a
        reference uses them (a critic, again).
    factored: True if trained weights are factors that the model multiplies with each other (LoRA):
        a mean of two copies is then not the mean of the two models.
    mesh: the processes that the weights are divided among; None if each process has all weights.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"log_probs"})
    unit: ClassVar[str] = "decisions"
    greedy: ClassVar[bool] = True
    facts: ClassVar[frozenset[str]] = frozenset()
    logged: ClassVar[frozenset[str]] = frozenset()
    shown: ClassVar[frozenset[str]] = frozenset()
    optional_facts: ClassVar[frozenset[str]] = frozenset()
    requested: frozenset[str] = frozenset()
    max_decisions: int | None = None
    notes: Sequence[str] = ()
    needed: frozenset[str] | None = None
    scale_loss: bool = False
    factored: bool = False
    mesh: DeviceMesh | None = None
    rates: Mapping[str, float] = MappingProxyType({})
    unkept: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, dict[str, Tensor]] = {}
        self.changes: dict[str, int] = {}

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide the weights among the processes of this mesh, and set `self.mesh`.

        Called before `place` if `train.shard` is set. No process should ever hold all weights:
        build the modules on `meta`; here, apply `torch.distributed.fsdp.fully_shard` to each block
        and to the root; load each process's own part in `place`. Outside `forward` and `sample`
        only that part is in memory, so set `reshard_after_forward=True` on the root, too (its
        default is False).

        `forward` then contains collectives that every process must join. The core therefore calls
        `forward` and `sample` equally often on each process, with equally many prompts, and `keep`,
        `using`, `restore` and `save_pretrained` on all of them.

        Raises UserError if the policy cannot be sharded.
        """
        raise UserError(
            f"train.shard: {type(self).__name__} cannot be sharded; leave train.shard out, so that "
            f"each process holds all of its weights"
        )

    def place(self, device: torch.device | str) -> None:
        """Move to the run's device, and determine whatever depends on it.

        Called once, before any other method except `shard`.
        """
        self.to(device)

    # ---- sampling: `sample` is `Sampler.sample`

    def follow(self, policy: nn.Module, name: str, version: int) -> None:
        """Nothing to do: a policy samples with the weights it has."""

    @classmethod
    def check_sampler_class(cls, sampler: type[Sampler]) -> None:
        """Raise UserError if the sampler is for other policies, or needs what this one lacks."""
        kind = sampler.policy_class
        if issubclass(sampler, Policy) and sampler is not cls:
            raise UserError(f"sampler: {sampler.__name__} is a policy, and draws only for itself")
        if not issubclass(cls, kind):
            raise UserError(
                f"sampler: {sampler.__name__} draws for {kind.__name__}, and the policy is a "
                f"{cls.__name__}"
            )
        missing = sampler.requires - cls.provides
        if missing:
            raise UserError(
                f"sampler: {sampler.__name__} needs {', '.join(sorted(missing))} of the policy, "
                f"which {cls.__name__} does not provide"
            )

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise UserError if training on rollouts of this other sampler would be wrong.

        For example, if the policy's settings cut the distribution (top-p) and the sampler cannot
        give log-probs of the cut one.
        """

    # ---- log-probs

    @abstractmethod
    def forward(self, rollouts: Rollouts, decisions: Decisions = slice(None)) -> LogProbs:
        """Log-probs [b, t] of the given decisions of every rollout, with gradients.

        Values outside the mask are ignored, but must be finite.
        """

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

    @classmethod
    def examine(cls, config: Any, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """Like `check_prompts`, but without weights, for `groupwise check`.

        config: the policy's `Config`. Returns notes; raises UserError.
        """
        return ()

    @classmethod
    def least_rate(cls, config: Any) -> float:
        """The least usual learning rate of the adapters that this `Config` trains, for a warning of
        `groupwise check`; 0 for none, as for whole models."""
        return 0.0

    def begin(self, step: int) -> None:
        """Called before the rollouts of a training step are sampled; the first step is 0.

        For sampling that depends on the step (a moving window, say). With `train.ahead` it comes
        before the update of the previous step. A resumed run passes the same numbers, so no state
        must be saved for it.
        """

    # ---- copies of earlier weights

    def keep(self, name: str) -> None:
        """Keep a copy of the trained weights as they are now, for `using(name)` and `blend`."""
        if not name.isidentifier():
            raise ValueError(
                f"keep: expected an identifier, since weights are saved in a file of that name, "
                f"received {name!r}"
            )
        self._kept[name] = {key: p.detach().clone() for key, p in self.keepable().items()}
        self._changed(name)

    @torch.no_grad()
    def blend(self, name: str, decay: float) -> None:
        """kept <- decay x kept + (1 - decay) x current: a moving average if called repeatedly."""
        kept = list(self._weights(name).values())
        if not kept:
            raise UserError(
                f"{type(self).__name__} holds no copy of the weights kept as {name!r}, so they "
                f"cannot be blended; `keep` weights under another name"
            )
        torch._foreach_lerp_(kept, [*self.keepable().values()], 1 - decay)
        self._changed(name)

    @torch.no_grad()
    def distance(self, name: str) -> float:
        """sqrt(mean((current - kept)^2)) over the weights kept as `name`. All processes of a
        sharded policy must call it."""
        present = [*self.keepable().values()]
        pairs = zip(present, self._weights(name).values(), strict=True)
        squares = [(current - kept).float().square().sum() for current, kept in pairs]
        whole = [s.full_tensor() if isinstance(s, DTensor) else s for s in squares]
        return math.sqrt(float(torch.stack(whole).sum()) / sum(p.numel() for p in present))

    def using(self, name: str) -> AbstractContextManager[None]:
        """A context with the weights kept as `name` in place of the current ones."""
        return self._exchanged(self._weights(name))

    @contextmanager
    def _exchanged(self, kept: Mapping[str, Tensor]) -> Iterator[None]:
        self._exchange(kept)
        try:
            yield
        finally:
            self._exchange(kept)

    def kept(self, name: str) -> Mapping[str, Tensor]:
        """The weights kept as `name`, for a checkpoint; {} if the policy needs no copy of them."""
        return self._kept.get(name, {})

    @torch.no_grad()
    def restore(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Load what `kept(name)` returned in an earlier run."""
        current = self.keepable() if weights else {}
        self._kept[name] = {key: weights[key].to(p, copy=True) for key, p in current.items()}
        self._changed(name)

    def _changed(self, name: str) -> None:
        self.changes[name] = self.changes.get(name, 0) + 1

    def keepable(self) -> dict[str, nn.Parameter]:
        """The trained weights that `keep` copies, by name: all except `unkept`."""
        return {
            key: p
            for key, p in self.named_parameters()
            if p.requires_grad and not key.startswith(self.unkept)
        }

    def _weights(self, name: str) -> dict[str, Tensor]:
        if name not in self._kept:
            names = ", ".join(self._kept) or "none"
            raise UserError(
                f"{type(self).__name__} keeps no weights named {name!r} (kept are: {names}); "
                f"call `keep({name!r})` first"
            )
        return self._kept[name]

    @torch.no_grad()
    def _exchange(self, kept: Mapping[str, Tensor]) -> None:
        # Copied, not re-pointed: this raises a parameter's version, by which caches (a copy in
        # bf16) notice the change.
        for parameter, other in zip(self.keepable().values(), kept.values(), strict=True):
            current = parameter.clone()
            parameter.copy_(other)
            other.copy_(current)

    # ---- saving, memory

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

    @classmethod
    def estimate(
        cls,
        config: Any,
        *,
        decisions: int,
        rollouts: int,
        group_size: int,
        sampled: int,
        training: bool,
        reference: bool,
        averages: int,
        shards: int = 1,
    ) -> Mapping[str, int]:
        """Bytes on one process by purpose ("weights", "optimizer", ...), without loading anything.

        decisions: the micro-batch budget, 0 if nothing is updated at that time.
        rollouts: the most rollouts of an update on one process. group_size: rollouts of a prompt.
        sampled: rollouts that the policy samples at once, 0 if it samples nothing at that time.
        reference: whether a reference is kept. averages: the number of moving averages.
        shards: the number of processes that weights, gradients and moments are divided among; with
            more than 1, add the buffers of gathered weights (`groupwise.memory`).
        Returns {} if there is no estimate, as by default.
        """
        return {}

    @classmethod
    def estimate_cpu(
        cls,
        config: Any,
        *,
        rollouts: int,
        prompts: int,
        requested: frozenset[str],
        reference: bool,
    ) -> Mapping[str, int]:
        """Bytes in CPU memory on one process by purpose, where the model is on another device.

        What `estimate` does not count: rollouts and caches that the policy stores there.

        rollouts: of a step; prompts: rows of the data set; requested: as the attribute. reference:
        whether a reference's outputs are kept until the update.
        Returns {} if there is no estimate, as by default.
        """
        return {}
