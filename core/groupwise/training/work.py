"""Work: the rollouts of all policies of a run: those to judge, and those each learner trains on."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.config.learners import SOLE
from groupwise.errors import UserError
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.training import failures


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """The scored rollouts that one learner is trained on.

    rest_of_group: rollouts of other learners in the same groups, with their scores; None if the
    groups are its own.
    """

    rollouts: Rollouts
    scores: Scores
    rest_of_group: "TrainingBatch | None" = None

    def without_failed(self) -> "TrainingBatch":
        """The rollouts that did not fail: algorithms, updates and replay see no others."""
        rest = None if self.rest_of_group is None else self.rest_of_group.without_failed()
        if not bool(self.scores.failed.any()):
            return replace(self, rest_of_group=rest)
        rows = ~self.scores.failed
        return TrainingBatch(
            rollouts=self.rollouts.select(rows), scores=self.scores.select(rows), rest_of_group=rest
        )

    def select(self, rows: Tensor) -> "TrainingBatch":
        """The rollouts at `rows` (indices or bool), and the rest of their groups."""
        rollouts, rest = self.rollouts.select(rows), self.rest_of_group
        if rest is not None:
            rest = rest.select(torch.isin(rest.rollouts.groups.cpu(), rollouts.groups.cpu()))
        return TrainingBatch(rollouts=rollouts, scores=self.scores.select(rows), rest_of_group=rest)

    def no_signal(self, algorithm: Algorithm) -> Tensor:
        """[B] bool: rollouts whose group, with its `rest_of_group`, has no training signal.

        A group whose rollouts all failed has none. A collective: it is decided over the rollouts of
        all processes, since an algorithm may compare a group with the rest of them.
        """
        usable = self.without_failed()
        parts = [usable] if usable.rest_of_group is None else [usable, usable.rest_of_group]
        # Scores without what rewards logged, which is not compared.
        ours = [
            (skeleton(part.rollouts), part.scores.select(torch.arange(len(part.rollouts))))
            for part in parts
        ]
        shared = gather_object(ours)
        rollouts = Rollouts.concat([rollouts for rollouts, _ in shared])
        scores = Scores.concat([scores for _, scores in shared])
        # In the order that one process would have, so that sums are rounded alike.
        order = rollouts.groups.argsort(stable=True)
        rollouts, scores = rollouts.select(order), scores.select(order)
        alive = rollouts.groups[~algorithm.no_signal(scores, rollouts)]
        return ~torch.isin(self.rollouts.groups.cpu(), alive)


def skeleton(rollouts: Rollouts) -> Rollouts:
    """What `Algorithm.targets` reads, in CPU memory and small enough to send: no completions."""
    return Rollouts(
        prompts=[{}] * len(rollouts),
        completions=[None] * len(rollouts),
        groups=rollouts.groups.cpu(),
        mask=rollouts.mask.cpu(),
        truncated=rollouts.truncated.cpu(),
        versions=rollouts.versions,
    )


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    """A batch of whole groups by all policies of a run; judged: the rollouts that rewards see.

    Facts are only in `judged`: nothing else may hold their tensors once rewards have seen them. The
    rollouts of each of several policies keep those that are logged, as plain numbers.
    """

    judged: Rollouts

    @property
    @abstractmethod
    def failures(self) -> dict[str, str]:
        """Why completions failed, of all policies; see `failures.of_policies`."""

    def check_for_spares(self) -> None:  # noqa: B027
        """Raise UserError if a policy has no rollouts on this process, so none for dummy passes."""

    @abstractmethod
    def select(self, rows: Tensor) -> Self:
        """The part with whole groups only; rows: [B] bool or indices of judged rollouts."""

    @abstractmethod
    def training_batches(self, scores: Scores) -> Mapping[str, TrainingBatch]:
        """The training batch of each learner, by label; scores: of the judged rollouts."""

    @classmethod
    @abstractmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """All parts as one, in order."""


@dataclass(frozen=True, kw_only=True)
class SoloWork(Work):
    """The rollouts of one policy, which are judged and learned from."""

    @property
    def failures(self) -> dict[str, str]:
        return failures.of_policies({"": self.judged})

    def select(self, rows: Tensor) -> "SoloWork":
        return SoloWork(judged=self.judged.select(rows))

    def training_batches(self, scores: Scores) -> Mapping[str, TrainingBatch]:
        return {SOLE: TrainingBatch(rollouts=self.judged, scores=scores)}

    @classmethod
    def concat(cls, parts: Sequence["SoloWork"]) -> "SoloWork":
        return SoloWork(judged=Rollouts.concat([part.judged for part in parts]))


@dataclass(frozen=True, kw_only=True)
class PoolWork(Work):
    """The rollouts of a pool of policies that share groups.

    judged: group after group, without trajectories; owners: [B] int64, the number of the policy
    that drew each; own: by label the rollouts of each policy, in the order of `judged`.
    """

    owners: Tensor
    own: Mapping[str, Rollouts]

    @property
    def failures(self) -> dict[str, str]:
        return failures.of_policies(self.own)

    def select(self, rows: Tensor) -> "PoolWork":
        index = torch.arange(len(self.judged))[rows]
        owners = self.owners[index]
        places = torch.zeros_like(self.owners)
        for number in range(len(self.own)):
            mine = self.owners == number
            places[mine] = torch.arange(int(mine.sum()))
        own = {
            label: rollouts.select(places[index[owners == number]])
            for number, (label, rollouts) in enumerate(self.own.items())
        }
        return PoolWork(judged=self.judged.select(index), owners=owners, own=own)

    def training_batches(self, scores: Scores) -> Mapping[str, TrainingBatch]:
        batches = {}
        for number, (label, rollouts) in enumerate(self.own.items()):
            mine = self.owners == number
            others = TrainingBatch(rollouts=self.judged.select(~mine), scores=scores.select(~mine))
            batches[label] = TrainingBatch(
                rollouts=rollouts, scores=scores.select(mine), rest_of_group=others
            )
        return batches

    @classmethod
    def concat(cls, parts: Sequence["PoolWork"]) -> "PoolWork":
        return PoolWork(
            judged=Rollouts.concat([part.judged for part in parts]),
            owners=torch.cat([part.owners for part in parts]),
            own={
                label: Rollouts.concat([part.own[label] for part in parts])
                for label in parts[0].own
            },
        )

    @staticmethod
    def of(
        own: Mapping[str, Rollouts], groups: int, logged: Mapping[str, Collection[str]]
    ) -> "PoolWork":
        """Join the policies' rollouts for the same draws, group by group; logged: by label, the
        facts whose means are metrics."""
        sizes = [len(rollouts) // max(1, groups) for rollouts in own.values()]
        owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes) * groups)
        numbers = torch.cat([torch.arange(groups).repeat_interleave(size) for size in sizes])
        order = torch.argsort(numbers, stable=True)
        common = set.intersection(*(set(rollouts.facts) for rollouts in own.values()))
        light = [
            replace(
                rollouts,
                trajectory={},
                facts={name: rollouts.facts[name] for name in sorted(common)},
                groups=rollouts.groups.cpu(),
                mask=rollouts.mask.cpu(),
                truncated=rollouts.truncated.cpu(),
                sampler_log_probs=None,
            )
            for rollouts in own.values()
        ]
        check_kinds(own)
        judged = Rollouts.concat(light).select(order)
        bare = {label: with_logged(rollouts, logged[label]) for label, rollouts in own.items()}
        return PoolWork(judged=judged, owners=owners[order], own=bare)


def with_logged(rollouts: Rollouts, logged: Collection[str]) -> Rollouts:
    """The same with these facts only, as plain numbers."""
    names = sorted(logged & rollouts.facts.keys())
    return replace(
        rollouts, facts={n: [float(value) for value in rollouts.facts[n]] for n in names}
    )


def check_kinds(own: Mapping[str, Rollouts]) -> None:
    """Raise UserError if completions of a pool differ in type: no reward could compare them."""
    kinds = {
        label: type(rollouts.completions[0]).__name__
        for label, rollouts in own.items()
        if len(rollouts)
    }
    if len(set(kinds.values())) > 1:
        each = ", ".join(f"{label!r} {kind}" for label, kind in kinds.items())
        raise UserError(
            f"pool: its policies return completions of different types ({each}), which no reward "
            f"can compare; a pool needs policies whose completions have the same form"
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The rollouts of one policy of a chain.

    parents: [n] int64, the index of the rollout of the previous stage that is the prompt of each; 0
    in the first stage; refused: [n] bool, rollouts that the next policy cannot take as its prompt
    (one that failed is no prompt, but not refused); value: the value of each reward for those.
    """

    label: str
    rollouts: Rollouts
    parents: Tensor
    refused: Tensor
    value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ChainWork(Work):
    """The rollouts of a chain of policies; the completion of each is the prompt of the next.

    judged: the last policy's rollouts, as answers to the dataset rows.
    """

    stages: Sequence[Stage]

    @property
    def failures(self) -> dict[str, str]:
        rows = self.stages[0].rollouts.prompts
        answers = {}
        for number, stage in enumerate(self.stages):
            prompts = [rows[root] for root in self.roots(number).tolist()]
            answers[stage.label] = replace(stage.rollouts, prompts=prompts)
        return failures.of_policies(answers)

    def check_for_spares(self) -> None:
        for before, after in pairwise(self.stages):
            if not len(after.rollouts):
                raise UserError(self._lacks_prompts(before, after))

    def _lacks_prompts(self, before: Stage, after: Stage) -> str:
        failed, refused = int(before.rollouts.failed.sum()), int(before.refused.sum())
        reasons = "".join(f"\n  {why}" for why in self.failures.values())
        return (
            f"chain: on one of the processes {after.label!r} has no prompt in this step, so there "
            f"is nothing to learn from: of {len(before.rollouts)} completions of {before.label!r} "
            f"{failed} failed, and {after.label!r} cannot take {refused} as its prompt. "
            f"Use fewer processes or more train.groups_per_step"
            f"{', and policies that write what the next one can take' if refused else ''}"
            f"{'; the first failures:' if reasons else ''}{reasons}"
        )

    def roots(self, number: int) -> Tensor:
        """[n]: for each rollout of a stage, the index of its ancestor in the first stage."""
        return roots(self.stages[: number + 1])

    def select(self, rows: Tensor) -> "ChainWork":
        """All or nothing, since the stages belong together: nothing if `rows` is empty."""
        if len(torch.arange(len(self.judged))[rows]):
            return self
        nothing = torch.empty(0, dtype=torch.int64)
        stages = [
            replace(s, rollouts=s.rollouts.select(nothing), parents=nothing, refused=nothing.bool())
            for s in self.stages
        ]
        return ChainWork(judged=self.judged.select(nothing), stages=stages)

    def training_batches(self, scores: Scores) -> Mapping[str, TrainingBatch]:
        """Of each stage: the last has the scores; earlier ones have the mean scores of the rollouts
        that their completions were the prompt of.

        Raises UserError for process rewards.
        """
        if scores.steps is not None:
            raise UserError(
                "a chain does not support process rewards: they judge decisions of its last "
                "policy, and none of the policies before it"
            )
        batches: list[tuple[str, TrainingBatch]] = []
        for number in range(len(self.stages) - 1, -1, -1):
            stage = self.stages[number]
            batches.append((stage.label, TrainingBatch(rollouts=stage.rollouts, scores=scores)))
            if number:
                scores = parent_scores(scores, stage.parents, self.stages[number - 1])
        return dict(reversed(batches))

    @classmethod
    def concat(cls, parts: Sequence["ChainWork"]) -> "ChainWork":
        """Expects one part: a chain draws all rollouts of a step at once."""
        (part,) = parts
        return part


def roots(stages: Sequence[Stage]) -> Tensor:
    """[n]: for each rollout of the last stage, the index of its ancestor in the first stage."""
    numbers = torch.arange(len(stages[-1].rollouts))
    for stage in reversed(stages[1:]):
        numbers = stage.parents[numbers]
    return numbers


def parent_scores(scores: Scores, parents: Tensor, stage: Stage) -> Scores:
    """The scores of a stage: for each rollout, the mean over the rollouts that it is the prompt of.

    Failed ones are left out of the mean, which is NaN if none is scored. A rollout failed if itself
    did, or all that it is the prompt of. Completions that the next policy refused have the value
    that the configuration sets.
    """
    count = len(stage.rollouts)
    values = scores.values.masked_fill(scores.failed.unsqueeze(1), torch.nan)
    zeros = values.new_zeros((count, values.shape[1]))
    sums = zeros.index_add(0, parents, values.nan_to_num())
    counts = zeros.index_add(0, parents, (~values.isnan()).to(values.dtype))
    means = torch.where(counts > 0, sums / counts.clamp(min=1), torch.nan)
    means[stage.refused] = stage.value
    tried, failed = torch.zeros(2, count, dtype=torch.bool)
    tried[parents], failed[parents[scores.failed]] = True, True
    failed[parents[~scores.failed]] = False
    return Scores(
        names=scores.names,
        weights=scores.weights,
        scales=scores.scales,
        values=means,
        failed=(failed & tried) | stage.rollouts.failed,
    )
