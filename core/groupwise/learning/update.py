"""Updater: from scored rollouts to a gradient, which does not depend on the micro-batches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from groupwise import objective
from groupwise.algorithm import OBSERVATIONS, Algorithm
from groupwise.experience.signal import skeleton
from groupwise.kit import processes, progress
from groupwise.kit.metric_names import Family
from groupwise.learning.batch import Update
from groupwise.learning.finiteness import Finiteness
from groupwise.metrics.tally import Tally
from groupwise.policy import Decisions, Microbatch, Outputs, Policy
from groupwise.record.gather import View
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts


@dataclass(kw_only=True)
class Updater:
    """Turns rollouts into gradients.

    policy: for passes without gradient; model: the same policy as accelerate wraps it (DDP).
    budget: the most decisions in a micro-batch.
    backpropagate: adds the gradient of a loss to the parameters' gradients.
    dummy: a rollout for passes without effect, while other processes have more micro-batches.
    first_nonfinite: the first tensor that was not finite in the last passes, None if all were.
    """

    policy: Policy
    model: nn.Module
    algorithm: Algorithm
    accelerator: Accelerator
    budget: int
    backpropagate: Callable[[Tensor], None]
    dummy: Rollouts | None = field(default=None, init=False)
    first_nonfinite: str | None = field(default=None, init=False)

    def backward(self, **fields: Any) -> dict[str, float]:
        """Accumulate the gradient of the `Update` with these fields; returns metrics."""
        update = Update(**fields)
        return self.accumulate(update, self.targets(update)).result()

    def accumulate(self, update: Update, targets: Mapping[str, Tensor]) -> Tally:
        """Add the gradient of an update's loss to the parameters'; returns metrics.

        targets: of the update. What the loss reads besides them, see `Algorithm.loss`.
        """
        rollouts, replayed = update.rollouts, update.replayed
        active = self.algorithm.active(targets).nonzero().flatten()
        split = self._split(rollouts.select(active), self.policy) if len(active) else ()
        parts = [(active[rows.cpu()], decisions) for rows, decisions in split]
        tensors = {**targets, "mask": rollouts.mask, **update.outputs}
        if rollouts.sampler_log_probs is not None:
            tensors["sampler_log_probs"] = rollouts.sampler_log_probs
        tensors = {name: value.cpu() for name, value in tensors.items()}
        tally, finiteness = Tally(), Finiteness()
        # The loss of an update is one sum over all processes, so it counts once.
        tally.mean("loss", 0.0, int(self.accelerator.is_main_process))
        tally.total("trained_decisions", 0.0)
        passes = processes.largest(len(parts))  # equal numbers of forwards on all of them
        outputs = self.algorithm.needs | (self.algorithm.old if update.first else frozenset())
        progress.expect("passes", passes)
        for number in range(passes):
            progress.count("passes")
            last = number == passes - 1
            with nullcontext() if last else self._unreduced():
                if number >= len(parts):
                    self.backpropagate(_nothing(self.model(*self._dummy(self.policy), outputs)))
                    continue
                rows, decisions = parts[number]
                piece = rollouts.select(rows)
                current: LogProbs = self.model(piece, decisions, outputs)
                batch = self._batch(tensors, rows, _within(decisions, piece))
                if update.first:
                    batch |= {f"old_{n}": current.outputs[n].detach() for n in self.algorithm.old}
                sampled = batch.get("sampler_log_probs")
                if not update.corrected:
                    batch.pop("sampler_log_probs", None)
                loss = self.algorithm.loss(current, batch).sum()
                # DDP averages over processes; the weights already divide by the whole update.
                self.backpropagate(loss * self.accelerator.num_processes)
            mask = batch["mask"]
            tally.mean("loss", loss, 0)
            tally.total("trained_decisions", mask.sum())
            tally.decisions(mask, self.algorithm.measure(current, batch))
            if OBSERVATIONS in batch:
                surprise = -current.extra["observation_log_probs"]
                tally.decisions(batch[OBSERVATIONS], {"observation_loss": surprise})
            finiteness.add(current, batch)
            old = current.log_probs if update.first else batch.get("old_log_probs")
            if (update.first or update.compared) and sampled is not None and old is not None:
                if replayed is not None:
                    mask = mask & ~replayed[rows].to(mask.device)[:, None]
                family = Family.STALE if update.stale else Family.MISMATCH
                _compare(tally, family, old.detach(), sampled, mask)
        self.first_nonfinite = finiteness.first()
        return tally.of_all_processes()

    @contextmanager
    def _unreduced(self) -> Iterator[None]:
        """A context of backward passes whose gradients are not reduced over processes yet.

        With shards, each process then holds whole gradients until the last pass. Those of adapters
        are small; those of a full model would take the memory that sharding saves, so they are
        reduced in every pass, but among copies of the model only once, too.
        """
        if self.policy.mesh is None:
            with self.accelerator.no_sync(self.model):
                yield
            return
        sharded = [m for m in self.policy.modules() if isinstance(m, FSDPModule)]
        try:
            for module in sharded:
                if self._trains_few:
                    module.set_requires_gradient_sync(False, recurse=False)
                else:
                    module.set_requires_all_reduce(False, recurse=False)
            yield
        finally:
            for module in sharded:
                module.set_requires_gradient_sync(True, recurse=False)

    @cached_property
    def _trains_few(self) -> bool:
        """Whether at most a tenth of the weights are trained."""
        weights = [*self.policy.parameters()]
        return 10 * sum(w.numel() for w in weights if w.requires_grad) <= sum(
            w.numel() for w in weights
        )

    def _batch(
        self, tensors: Mapping[str, Tensor], rows: Tensor, decisions: slice
    ) -> dict[str, Tensor]:
        """The rows of all tensors, of those with decisions these, on the device."""
        rows, batch = rows.cpu(), dict[str, Tensor]()
        for name, value in tensors.items():
            part = value[rows][:, decisions] if value.ndim > 1 else value[rows]
            batch[name] = part.to(self.accelerator.device)
        return batch

    def targets(self, update: Update) -> Mapping[str, Tensor]:
        """The algorithm's targets for an update, computed over the rollouts of all processes, which
        it observes before if they are new. A collective.

        All targets except the weights are also over those `left` out and the `rest`, those of other
        learners: the denominators are those of the rollouts that the learner is trained on.
        """
        rollouts, outputs = update.rollouts, update.outputs
        zeros = rollouts.mask.new_zeros(rollouts.mask.shape, dtype=torch.float32)
        inputs = {n: outputs.get(n, zeros).cpu() for n in sorted(self.algorithm.target_inputs)}
        ours = replace(skeleton(rollouts), trajectory=inputs), update.scores.bare
        view, rows = self._in_order(ours, update.order)
        own = [view, *_shared(update.left)]
        scores, together, of_all = self._together(own)
        if not update.repeated:
            self.algorithm.observe(scores, together)
        targets = weighed = self.algorithm.targets(scores, together, of_all)
        if update.rest is not None:
            targets = self.algorithm.targets(*self._together([*own, *_shared(update.rest)]))
        if update.left is not None:
            weighed = self.algorithm.targets(*self._together([view]))
        targets = {**targets, "weights": weighed["weights"]}
        decisions = rollouts.mask.shape[1]
        return {
            name: value[rows, :decisions] if value.ndim > 1 else value[rows]
            for name, value in targets.items()
        }

    def _in_order(self, ours: View, order: Tensor | None) -> tuple[View, Tensor]:
        """The rollouts of all processes in the order of an update, and where ours are in it. A
        collective."""
        every = gather_object([(ours, order)])
        before = [len(rollouts) for (rollouts, _), _ in every[: self.accelerator.process_index]]
        rows = torch.arange(len(ours[0])) + sum(before)
        if len(every) == 1:
            return ours, rows
        view = _joined([part for part, _ in every])
        if order is None:
            return view, rows
        keys = [key.tolist() for _, keys in every for key in keys]
        places = torch.tensor(sorted(range(len(keys)), key=keys.__getitem__), dtype=torch.int64)
        return (view[0].select(places), view[1].select(places)), places.argsort()[rows]

    def _together(self, parts: Sequence[View]) -> tuple[Scores, Rollouts, Mapping[str, Tensor]]:
        """All parts together, in order, as the algorithm gets them."""
        whole, scores = _joined(parts)
        inputs = {name: whole.tensor(name) for name in sorted(self.algorithm.target_inputs)}
        return scores, replace(whole, trajectory={}), inputs

    @torch.no_grad()
    def outputs(
        self, rollouts: Rollouts, names: Outputs, *, of: Policy | None = None
    ) -> dict[str, Tensor]:
        """Outputs [B, T, ...] of the policy by name, without gradient, on the CPU.

        names: "log_probs", "entropy" or names of the policy's extras; empty for no rollouts. of:
        another policy, a teacher.
        The processes of a sharded policy make equally many passes.
        """
        filled, policy = dict[str, Tensor](), of or self.policy
        parts = self._split(rollouts, policy) if len(rollouts) else ()
        if policy.mesh is not None:
            for _ in range(processes.largest(len(parts)) - len(parts)):
                policy(*self._dummy(policy), names)
        for rows, decisions in parts:
            piece = rollouts.select(rows)
            current = policy(piece, decisions, names)
            for name in names:
                value = current.outputs[name]
                if name not in filled:
                    shape = rollouts.mask.shape + value.shape[2:]
                    filled[name] = value.new_zeros(shape, device="cpu")
                filled[name][rows.cpu(), _within(decisions, piece)] = value.cpu()
        return filled

    def _split(self, rollouts: Rollouts, policy: Policy) -> Sequence[Microbatch]:
        return policy.microbatches(
            rollouts, self.budget, cut_decisions=not self.algorithm.couples_decisions
        )

    def _dummy(self, policy: Policy) -> tuple[Rollouts, Decisions]:
        """A micro-batch for a pass without effect."""
        assert self.dummy is not None
        rows, decisions = self._split(self.dummy, policy)[0]
        return self.dummy.select(rows), decisions


def _joined(parts: Sequence[View]) -> View:
    rollouts = Rollouts.concat([part for part, _ in parts])
    return rollouts, Scores.concat([scores for _, scores in parts])


def _shared(view: View | None) -> list[View]:
    """Those of all processes, as `Updater.targets` reads them; [] for None. A collective."""
    if view is None:
        return []
    return gather_object([(skeleton(view[0]), view[1].bare)])


def _compare(tally: Tally, family: Family, ours: Tensor, sampler: Tensor, mask: Tensor) -> None:
    """Add the difference of the policy's log-probs [b, t] from the sampler's, where `mask`."""
    ours, sampler = ours.masked_fill(~mask, 0.0), sampler.masked_fill(~mask, 0.0)
    difference = (ours - sampler).abs().nan_to_num(nan=torch.inf)
    # KL(sampler || policy), since the samples are the sampler's.
    gaps = {f"{family}/mean": difference, f"{family}/kl": objective.kl(sampler, ours)}
    tally.decisions(mask, gaps)
    if difference.numel():
        tally.largest(f"{family}/max", difference.max())


def _within(decisions: slice, piece: Rollouts) -> slice:
    """The decisions, limited to those of a batch that is trimmed to its longest rollout."""
    return slice(*decisions.indices(piece.mask.shape[1]))


def _nothing(current: LogProbs) -> Tensor:
    """0, computed from all outputs, so that gradients are zero and DDP's hooks run."""
    sums = [torch.nan_to_num(x).sum() for x in current.outputs.values() if x.requires_grad]
    return torch.stack(sums).sum() * 0.0
