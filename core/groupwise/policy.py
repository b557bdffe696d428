"""Policy: anything that samples completions and tells the log-probabilities of its decisions.

A policy is an `nn.Module` whose forward *is* the log-prob, so accelerate can wrap any of them in
DDP without knowing more. One that is too large for a device divides its own weights among the
processes: `shard`.
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
    """The contract between the core and a modality.

    provides: what `forward` fills in: "log_probs", "entropy", "mean" and other extras.
    unit: what a decision is called in progress lines ("tokens", "steps").
    greedy: whether "greedy" is another way to sample than "evaluate"; a flow model's evaluation
        has no noise to leave out.
    facts: the names of `Rollouts.facts`, which rewards may ask for as they ask for columns.
    logged: those of `facts` that are numbers and whose mean is a metric of every step.
    optional_facts: further facts, which cost time or memory: `sample` states those in `requested`.
    requested: those of `optional_facts` that a reward has in its signature by name; set by the core
        before anything is sampled.
    max_decisions: the most decisions a rollout can have, where there is such a limit.
    notes: what the user should know of how this policy runs; printed once at start.
    needed: the quantities that are needed of it, of those in `provides`; None where all are. The
        core sets it to those of the algorithm before anything is sampled, and for a pass that
        fewer are asked of to these. A policy may leave out the others.
    scale_loss: True where gradients are computed in float16 and may underflow: the loss is then
        scaled by torch's GradScaler.
    changes: by name, how often the weights kept under it were kept or blended.
    rates: by what names of weights begin with, the factor of the learning rate that they are
        trained at, where that is not 1 (a critic's).
    unkept: what names of trained weights begin with that `keep` copies in vain, since neither
        sampling nor a reference asks for them (a critic's, too).
    mesh: the processes that its weights are divided among; None where each has them all.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"log_probs"})
    unit: ClassVar[str] = "decisions"
    greedy: ClassVar[bool] = True
    facts: ClassVar[frozenset[str]] = frozenset()
    logged: ClassVar[frozenset[str]] = frozenset()
    optional_facts: ClassVar[frozenset[str]] = frozenset()
    requested: frozenset[str] = frozenset()
    max_decisions: int | None = None
    notes: Sequence[str] = ()
    needed: frozenset[str] | None = None
    scale_loss: bool = False
    mesh: DeviceMesh | None = None
    rates: Mapping[str, float] = MappingProxyType({})
    unkept: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, dict[str, Tensor]] = {}
        self.changes: dict[str, int] = {}

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide the weights among the processes of this mesh, and set `self.mesh`.

        Called before `place`, where `train.shard` is set. No process should ever hold all weights:
        build the structure on `meta`; here, apply `torch.distributed.fsdp.fully_shard` to each
        block and to the whole; read each process's own part in `place`. Outside `forward` and
        `sample` only that part is there, so the whole, too, has `reshard_after_forward=True`,
        which is not its default.

        `forward` then waits for all processes: the core calls it, and `sample`, equally often on
        each, with equally many prompts, and `keep`, `using`, `restore` and `save_pretrained` on
        all.

        Raises UserError where the policy cannot be sharded.
        """
        raise UserError(
            f"train.shard: {type(self).__name__} cannot be sharded; leave train.shard out, and "
            f"each process holds the whole of it"
        )

    def place(self, device: torch.device | str) -> None:
        """Move to the device of the run, and find out there what depends on it.

        Called once, before anything else is asked of the policy.
        """
        self.to(device)

    # ---- sampling: `sample` is `Sampler.sample`

    def follow(self, policy: nn.Module, name: str, version: int) -> None:
        """Nothing to do: a policy samples with the weights it has."""

    @classmethod
    def check_sampler_class(cls, sampler: type[Sampler]) -> None:
        """Raise UserError where it draws for other policies, or builds on what this one has not."""
        kind = sampler.policy_class
        if issubclass(sampler, Policy) and sampler is not cls:
            raise UserError(f"sampler: {sampler.__name__} is a policy, and draws for itself alone")
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
        """Raise UserError where training on what this other sampler draws would be wrong.

        Such as where it must score the distribution it draws from, and the policy's settings cut
        that distribution.
        """

    # ---- log-probs

    @abstractmethod
    def forward(self, rollouts: Rollouts, decisions: Decisions = slice(None)) -> LogProbs:
        """Log-probs [b, t] of the given decisions of every rollout, with gradients.

        Values at masked places are ignored but must be finite.
        """

    def microbatches(
        self, rollouts: Rollouts, budget: int, *, cut_decisions: bool
    ) -> Sequence[Microbatch]:
        """Split rollouts into parts that fit in memory: (rows, decisions) each.

        budget: the most decisions in one part, padding included; a single rollout may exceed it.
        cut_decisions: whether the loss allows a rollout's decisions to be cut apart.
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

        rows: those of training and of evaluation, read only as far as this iterates over them.
        """

    def skips(self, row: Mapping[str, Any]) -> bool:
        """Whether a row must never be drawn, since it is too long, say; by the row alone.

        The core leaves such rows out of training and evaluation, and counts them.
        """
        return False

    @classmethod
    def examine(cls, config: Any, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """For `groupwise check`: what `check_prompts` would raise or note, without loading weights.

        config: the policy's `Config`. Raises UserError, and returns notes.
        """
        return ()

    def begin(self, step: int) -> None:
        """Called before a training step's rollouts are sampled, with the number of steps before it.

        For what depends on it in sampling: with `train.ahead` the step before is learned from
        afterwards. A resumed run calls it with the same numbers, so it needs no state of its own.
        """

    # ---- other weights than the newest

    def keep(self, name: str) -> None:
        """Keep a copy of the trained weights as they are now, for `using(name)` and `blend`."""
        if not name.isidentifier():
            raise ValueError(f"keep: a name of weights is also one of a file, received {name!r}")
        self._kept[name] = {key: p.detach().clone() for key, p in self.keepable().items()}
        self._changed(name)

    @torch.no_grad()
    def blend(self, name: str, decay: float) -> None:
        """kept <- decay x kept + (1 - decay) x present: a moving average, if called repeatedly."""
        kept = list(self._weights(name).values())
        if not kept:
            raise UserError(
                f"{type(self).__name__} needs no copy of the weights kept as {name!r}, so they "
                f"cannot be blended; `keep` others by another name"
            )
        torch._foreach_lerp_(kept, [*self.keepable().values()], 1 - decay)
        self._changed(name)

    @torch.no_grad()
    def distance(self, name: str) -> float:
        """How far the present weights are from those kept as `name`: the root of the mean squared
        difference. Of a sharded policy all processes must ask."""
        present = [*self.keepable().values()]
        pairs = zip(present, self._weights(name).values(), strict=True)
        squares = [(mine - other).float().square().sum() for mine, other in pairs]
        whole = [s.full_tensor() if isinstance(s, DTensor) else s for s in squares]
        return math.sqrt(float(torch.stack(whole).sum()) / sum(p.numel() for p in present))

    def using(self, name: str) -> AbstractContextManager[None]:
        """The weights kept as `name` in place of the present ones, which come back at the end."""
        return self._exchanged(self._weights(name))

    @contextmanager
    def _exchanged(self, kept: Mapping[str, Tensor]) -> Iterator[None]:
        self._exchange(kept)
        try:
            yield
        finally:
            self._exchange(kept)

    def kept(self, name: str) -> Mapping[str, Tensor]:
        """The weights kept as `name`, for a checkpoint; {} where `keep` needs no copy of them."""
        return self._kept.get(name, {})

    @torch.no_grad()
    def restore(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Take up what `kept(name)` returned in an earlier run, kept in this one before or not."""
        mine = self.keepable() if weights else {}
        self._kept[name] = {key: weights[key].to(p, copy=True) for key, p in mine.items()}
        self._changed(name)

    def _changed(self, name: str) -> None:
        self.changes[name] = self.changes.get(name, 0) + 1

    def keepable(self) -> dict[str, nn.Parameter]:
        """The trained weights that `keep` copies, by name: all but the `unkept`."""
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
                f"`keep({name!r})` comes first"
            )
        return self._kept[name]

    @torch.no_grad()
    def _exchange(self, kept: Mapping[str, Tensor]) -> None:
        # By copies, not by pointers: whoever watches a parameter's version sees the change.
        for parameter, other in zip(self.keepable().values(), kept.values(), strict=True):
            own = parameter.clone()
            parameter.copy_(other)
            other.copy_(own)

    # ---- saving, memory

    @property
    def card(self) -> Mapping[str, Any]:
        """Facts for the card of the saved model.

        `base_model` (hub name or absolute path), `library_name`, `pipeline_tag`, and `usage`,
        Python that loads it, where `{path}` stands for the folder.
        """
        return {}

    def save_pretrained(self, path: Path) -> None:
        """Write the trained weights in the ecosystem's own format; the default is safetensors.

        Called on the first process alone; of a sharded policy on all, and the first alone writes.
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
        """Bytes on one process by purpose ("weights", "optimizer", ...) without loading anything.

        decisions: the micro-batch budget, 0 while nothing is updated; rollouts: as many as a
        process has in an update at the most; group_size: of those of a prompt; sampled: as many as
        the policy samples at once, 0 while it samples nothing; reference: whether a reference is
        kept; averages: how many moving averages; shards: among how many processes the weights, and
        what is kept of each, are divided, where the buffers of gathered weights come on top
        (`groupwise.memory`). The default knows nothing and says so with {}.
        """
        return {}
