"""Update: scored rollouts to a gradient, in micro-batches that do not change it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.policy import Decisions, Microbatch, Policy
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.training.measured import Checks, Sums
from groupwise.training.work import Lesson, skeleton


@dataclass(kw_only=True)
class Updater:
    """Turns rollouts into gradients.

    policy answers for sampling-side calls; model is the same policy as accelerate wrapped it.
    backpropagate: adds the gradient of a loss to the parameters' own; accelerate's if unset.
    suspect: the first tensor that was not finite in the last `backward`, None if all were.
    """

    policy: Policy
    model: nn.Module
    algorithm: Algorithm
    accelerator: Accelerator
    budget: int
    backpropagate: Callable[[Tensor], None] | None = None
    suspect: str | None = field(default=None, init=False)

    def backward(
        self,
        rollouts: Rollouts,
        scores: Scores,
        answers: Mapping[str, Tensor],
        *,
        beside: Lesson | None = None,
        spare: Rollouts | None = None,
        first: bool = True,
        corrected: bool = False,
        apart: Tensor | None = None,
    ) -> dict[str, float]:
        """Accumulate the gradient of the update's loss; returns what was measured on the way.

        answers: [B, T, ...] tensors that the loss needs beside the targets (what the reference
            says, and in later updates what the policy said before the first), for these rollouts.
            They wait on the CPU, as a mean may be as large as a latent: a micro-batch takes its
            share to the device.
        beside: what other learners of a pool did in the same groups, which counts in the targets,
            but for the weights: a loss has the denominators of its own rollouts.
        spare: rollouts to run without effect while other processes have more micro-batches, cut as
            the policy cuts any others; the longest of `rollouts` if unset, which then must not be
            empty.
        first: whether it is the step's first update, in which the old answers are the present ones,
            and the sampler's log-probs are compared with them.
        corrected: whether the loss weighs the rollouts by the sampler's log-probs.
        apart: [B] bool, rollouts of earlier steps, which are not compared with the sampler.
        """
        targets = self.targets(scores, rollouts, answers, beside=beside)
        everything = {**targets, "mask": rollouts.mask, **answers}
        if rollouts.sampler_log_probs is not None:
            everything["sampler_log_probs"] = rollouts.sampler_log_probs
        if apart is not None:
            everything["apart"] = apart
        everything = {name: value.cpu() for name, value in everything.items()}
        active = self.algorithm.active(targets).nonzero().flatten()
        parts = self._parts(rollouts, active)
        sums, checks = Sums(), Checks()
        backpropagate = self.backpropagate or self.accelerator.backward
        passes = processes.largest(len(parts))  # equal numbers of forwards on all of them
        for number in range(passes):
            last = number == passes - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                if number >= len(parts):
                    backpropagate(_nothing(self.model(*self._idle(spare, rollouts))))
                    continue
                rows, decisions = parts[number]
                piece = rollouts.select(rows)
                current: LogProbs = self.model(piece, decisions)
                batch = self._batch(everything, rows, _within(decisions, piece))
                if first:
                    batch |= {f"old_{name}": _of(current, name) for name in self.algorithm.old}
                sampled, older = batch.get("sampler_log_probs"), batch.pop("apart", None)
                if not corrected:
                    batch.pop("sampler_log_probs", None)
                loss = self.algorithm.loss(current, batch).sum()
                # DDP averages over processes; the weights already divide by the whole update.
                backpropagate(loss * self.accelerator.num_processes)
            gap = None
            if first and sampled is not None and current.log_probs is not None:
                ours = current.log_probs.detach()
                gap = ours, sampled if older is None else sampled.where(~older[:, None], ours)
            sums.add(self.algorithm.measure(current, batch), gap, batch, loss)
            checks.add(current, batch)
        self.suspect = checks.first()
        return sums.result()

    def _batch(
        self, everything: Mapping[str, Tensor], rows: Tensor, decisions: slice
    ) -> dict[str, Tensor]:
        """These rows and decisions of every tensor, on the device."""
        cut = _cut(everything, rows, decisions)
        return {name: value.to(self.accelerator.device) for name, value in cut.items()}

    def targets(
        self,
        scores: Scores,
        rollouts: Rollouts,
        answers: Mapping[str, Tensor],
        *,
        beside: Lesson | None = None,
    ) -> Mapping[str, Tensor]:
        """The algorithm's targets of our rollouts, computed over those of all processes.

        With rollouts beside them, those targets are computed over both, but for the weights.
        """
        nothing = rollouts.mask.new_zeros(rollouts.mask.shape, dtype=torch.float32)
        seen = {n: answers.get(n, nothing).cpu() for n in sorted(self.algorithm.sees)}
        shared = gather_object([(replace(skeleton(rollouts), trajectory=seen), scores)])
        start = sum(len(part) for part, _ in shared[: self.accelerator.process_index])
        targets = self._targets(shared)
        if beside is not None:
            others = gather_object([(skeleton(beside.rollouts), beside.scores)])
            targets = {**self._targets([*shared, *others]), "weights": targets["weights"]}
        decisions = rollouts.mask.shape[1]
        ours = slice(start, start + len(rollouts))
        return {
            name: value[ours, :decisions] if value.ndim > 1 else value[ours]
            for name, value in targets.items()
        }

    def _targets(self, parts: Sequence[tuple[Rollouts, Scores]]) -> Mapping[str, Tensor]:
        """The targets of all these together, in order."""
        whole = Rollouts.concat([rollouts for rollouts, _ in parts])
        seen = {name: whole.tensor(name) for name in sorted(self.algorithm.sees)}
        scores = Scores.concat([scores for _, scores in parts])
        return self.algorithm.targets(scores, replace(whole, trajectory={}), seen)

    @torch.no_grad()
    def answers(
        self, rollouts: Rollouts, names: Iterable[str], *, spare: Rollouts | None = None
    ) -> dict[str, Tensor]:
        """[B, T, ...] on the CPU of all rollouts for each name, without gradient, part by part.

        names: "log_probs" or those of the policy's extras. Nothing for no rollouts.
        spare: as for `backward`; of a sharded policy all processes make equally many passes.
        """
        with _needing(self.policy, names):
            return self._answers(rollouts, names, spare=spare)

    def _answers(
        self, rollouts: Rollouts, names: Iterable[str], *, spare: Rollouts | None
    ) -> dict[str, Tensor]:
        filled: dict[str, Tensor] = {}
        parts = self._split(rollouts) if len(rollouts) else ()
        if self.policy.mesh is not None:
            for _ in range(processes.largest(len(parts)) - len(parts)):
                self.policy(*self._idle(spare, rollouts))
        for rows, decisions in parts:
            piece = rollouts.select(rows)
            current: LogProbs = self.policy(piece, decisions)
            for name in names:
                value = _of(current, name)
                if name not in filled:
                    shape = rollouts.mask.shape + value.shape[2:]
                    filled[name] = value.new_zeros(shape, device="cpu")
                filled[name][rows.cpu(), _within(decisions, piece)] = value.cpu()
        return filled

    def _split(self, rollouts: Rollouts) -> Sequence[Microbatch]:
        return self.policy.microbatches(
            rollouts, self.budget, cut_decisions=not self.algorithm.couples_decisions
        )

    def _idle(self, spare: Rollouts | None, rollouts: Rollouts) -> tuple[Rollouts, Decisions]:
        """A micro-batch as any other, for a pass without effect."""
        if spare is None:
            spare = rollouts.select([int(rollouts.extents.argmax())])
        rows, decisions = self._split(spare)[0]
        return spare.select(rows), decisions

    def _parts(self, rollouts: Rollouts, active: Tensor) -> list[Microbatch]:
        """Micro-batches of the active rows."""
        if not len(active):
            return []
        active = active.cpu()
        split = self._split(rollouts.select(active))
        return [(active[rows.cpu()], decisions) for rows, decisions in split]


@contextmanager
def _needing(policy: Policy, names: Iterable[str]) -> Iterator[None]:
    """The context of passes of which nothing else than these answers is needed."""
    before, policy.needed = policy.needed, frozenset(names)
    try:
        yield
    finally:
        policy.needed = before


def _within(decisions: slice, piece: Rollouts) -> slice:
    """The decisions that a piece, trimmed to its longest rollout, has."""
    return slice(*decisions.indices(piece.mask.shape[1]))


def _nothing(current: LogProbs) -> Tensor:
    """Zero, of everything the model answered, so that its gradient is zero and not absent."""
    answers = [current.log_probs, current.entropy, *current.extra.values()]
    kept = [torch.nan_to_num(a).sum() for a in answers if a is not None and a.requires_grad]
    return torch.stack(kept).sum() * 0.0


def _cut(tensors: Mapping[str, Tensor], rows: Tensor, decisions: slice) -> dict[str, Tensor]:
    """The rows of every tensor, and the decisions of those that have them."""
    cut = {}
    for name, value in tensors.items():
        part = value[rows.cpu()]
        cut[name] = part[:, decisions] if value.ndim > 1 else part
    return cut


def _of(current: LogProbs, name: str) -> Tensor:
    """What a policy answered by that name, without gradient."""
    value = current.log_probs if name == "log_probs" else current.extra[name]
    assert value is not None
    return value.detach()
