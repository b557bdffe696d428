"""Team: the policies of a run as they draw the rollouts of a step: one, a pool or a chain."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from groupwise import processes
from groupwise.config.learners import SOLE
from groupwise.errors import UserError
from groupwise.prompts.draws import Draw
from groupwise.prompts.source import Row
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.training.sampling import Sampling
from groupwise.training.work import ChainWork, PoolWork, SoloWork, Stage, Work, firsts


class Examinee(Protocol):
    """What is evaluated: a policy alone, or a chain of them."""

    @property
    def greedy(self) -> bool:
        """Whether it has a greedy mode."""

    def examine(
        self, draws: Sequence[Draw], size: int, purpose: Purpose, *, space: str
    ) -> Iterator["Examined"]:
        """`size` completions of each of this process's share of the draws; space: of the seeds."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """Completions to judge; indices: which of its prompt's completions each is.

    refusals: what is not among them, since the next policy of a chain could not take it.
    """

    rollouts: Rollouts
    indices: Sequence[int]
    refusals: Sequence["Refusal"] = ()


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """value: what each reward is for it; written: as the facts of a chain, by label; by: the label
    of the policy that could not take it.
    """

    by: str
    row: Row
    draw: int
    index: int
    written: Mapping[str, str]
    value: float


class Team(ABC):
    """Who draws in a run. All processes call its methods alike.

    samplings: by label, what draws for each policy. writers: facts of the rollouts that are judged
    which say what policies before the last wrote.
    """

    writers: Sequence[str] = ()

    def __init__(self, samplings: Mapping[str, Sampling]) -> None:
        self.samplings = samplings

    def begin(self, step: int) -> None:
        for sampling in self.samplings.values():
            sampling.policy.begin(step)

    def follow(self, weights: Mapping[str, str | None], version: int) -> None:
        """Have each draw with its weights of a name, the present ones where that is None."""
        for label, sampling in self.samplings.items():
            sampling.follow(weights.get(label), version)

    def forget(self) -> None:
        """Weights were loaded: what samplers follow is out of date."""
        for sampling in self.samplings.values():
            sampling.forget()

    def share(self, draws: Sequence[Draw]) -> Sequence[Draw]:
        """Those of the draws that are this process's."""
        return next(iter(self.samplings.values())).share(draws)

    @property
    def draws_itself(self) -> bool:
        """Whether every policy is its own sampler, so that nothing is drawn beside an update."""
        return all(s.sampler is s.policy for s in self.samplings.values())

    @property
    def logged(self) -> Collection[str]:
        """Facts of what is judged whose means are metrics."""
        return frozenset().union(*(s.policy.logged for s in self.samplings.values()))

    @property
    @abstractmethod
    def examinees(self) -> Mapping[str, Examinee]:
        """What is evaluated, by label; "" where it is the run as a whole."""

    @abstractmethod
    def draw(self, draws: Sequence[Draw]) -> Iterator[Work]:
        """The rollouts to train on, of this process's share of the draws.

        A process without a share draws those of the first, without use: collectives of a sharded
        policy need every process.
        """


class Solo(Team):
    """One policy; group_size: rollouts of each prompt."""

    def __init__(self, sampling: Sampling, group_size: int) -> None:
        super().__init__({SOLE: sampling})
        self.sampling, self.group_size = sampling, group_size

    @property
    def examinees(self) -> Mapping[str, Examinee]:
        return {"": Alone(self.sampling)}

    def draw(self, draws: Sequence[Draw]) -> Iterator[Work]:
        drawn = self.sampling.draw(
            draws, self.group_size, space="train", purpose="train", idle=True
        )
        for rollouts in drawn:
            yield SoloWork(judged=rollouts)


class Pool(Team):
    """Several policies that fill the same groups; group_size: rollouts of a prompt by all of them.

    Each has seeds of its own, and each is evaluated alone.
    """

    def __init__(self, samplings: Mapping[str, Sampling], group_size: int) -> None:
        super().__init__(samplings)
        self.each = group_size // len(samplings)

    @property
    def examinees(self) -> Mapping[str, Examinee]:
        return {label: Alone(sampling) for label, sampling in self.samplings.items()}

    def draw(self, draws: Sequence[Draw]) -> Iterator[Work]:
        ours = self.share(draws) or draws[:1]
        own = {}
        for label, sampling in self.samplings.items():
            drawn = sampling.draw(
                draws, self.each, space=f"train/{label}", purpose="train", idle=True
            )
            own[label] = Rollouts.concat(list(drawn))
        yield PoolWork.of(own, len(ours))


class Chain(Team):
    """Policies of which each one's completion is the next one's prompt.

    sizes: by label, how many completions of each prompt that it receives a policy draws; refused:
    what each reward is for a completion that the next policy cannot take. The rollouts that are
    judged answer the rows that the first policy received; what the policies before the last wrote
    is among their facts, by label.
    """

    def __init__(
        self,
        samplings: Mapping[str, Sampling],
        sizes: Mapping[str, int],
        refused: Mapping[str, float],
    ) -> None:
        super().__init__(samplings)
        self.sizes, self.refused = sizes, refused
        self.labels = list(samplings)
        self.writers = self.labels[:-1]

    @property
    def examinees(self) -> Mapping[str, Examinee]:
        return {"": Together(self)}

    @property
    def logged(self) -> Collection[str]:
        return self.samplings[self.labels[-1]].policy.logged

    def draw(self, draws: Sequence[Draw]) -> Iterator[Work]:
        ours = self.share(draws) or draws[:1]
        yield self.descend(ours, self.sizes, space="train", purpose="train", spare=draws[:1])

    def descend(
        self,
        ours: Sequence[Draw],
        sizes: Mapping[str, int],
        *,
        space: str,
        purpose: Purpose,
        spare: Sequence[Draw],
    ) -> ChainWork:
        """What each policy draws, one after the other; ours: draws of this process.

        spare: a draw to sample without use where a sharded policy needs this process, too. Raises
        UserError where completions are no text.
        """
        stages: list[Stage] = []
        due, parents = list(ours), torch.zeros(len(ours), dtype=torch.int64)
        rows = [draw.row for draw in ours]
        written: dict[str, list[Any]] = {}
        for number, label in enumerate(self.labels):
            size = sizes[label]
            rollouts = self._drawn(
                label, due, size, space=space, purpose=purpose, spare=due[:1] or spare
            )
            stages.append(
                Stage(
                    label=label,
                    rollouts=rollouts,
                    parents=parents.repeat_interleave(size),
                    refused=torch.zeros(len(rollouts), dtype=torch.bool),
                    value=self.refused[label],
                )
            )
            rows = [row for row in rows for _ in range(size)]
            written = {
                name: [v for v in texts for _ in range(size)] for name, texts in written.items()
            }
            if number == len(self.labels) - 1:
                break
            texts = [text_of(completion, label) for completion in rollouts.completions]
            following = self.samplings[self.labels[number + 1]].policy
            prompts = [{**row, "prompt": text} for row, text in zip(rows, texts, strict=True)]
            refused = torch.tensor([following.skips(row) for row in prompts], dtype=torch.bool)
            stages[-1] = replace(stages[-1], refused=refused)
            written[label] = texts
            accepted = (~refused).nonzero().flatten()
            numbers = [draw.number * size + index for draw in due for index in range(size)]
            kept = accepted.tolist()
            due = [Draw(number=numbers[i], row=prompts[i]) for i in kept]
            rows, parents = [rows[i] for i in kept], accepted
            written = {name: [texts[i] for i in kept] for name, texts in written.items()}
        return ChainWork(judged=_judged(stages, rows, written), stages=stages)

    def _drawn(
        self,
        label: str,
        due: Sequence[Draw],
        size: int,
        *,
        space: str,
        purpose: Purpose,
        spare: Sequence[Draw],
    ) -> Rollouts:
        """`size` rollouts of one policy for each draw, none where there are none."""
        sampling = self.samplings[label]
        if purpose == "greedy" and not sampling.greedy:
            purpose = "evaluate"
        most = processes.largest(len(due))
        drawn = sampling.draw_own(
            due, size, space=f"{space}/{label}", purpose=purpose, most=most, spare=spare
        )
        parts = list(drawn)
        return Rollouts.concat(parts) if parts else nothing_drawn()


class Alone:
    """One policy, evaluated by itself."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy

    def examine(
        self, draws: Sequence[Draw], size: int, purpose: Purpose, *, space: str
    ) -> Iterator[Examined]:
        for rollouts in self.sampling.draw(draws, size, space=space, purpose=purpose):
            indices = [row % size for row in range(len(rollouts))]
            yield Examined(rollouts=rollouts, indices=indices)


class Together:
    """A chain, evaluated as a whole: its first policy draws several completions, the others one."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    @property
    def greedy(self) -> bool:
        return any(sampling.greedy for sampling in self.chain.samplings.values())

    def examine(
        self, draws: Sequence[Draw], size: int, purpose: Purpose, *, space: str
    ) -> Iterator[Examined]:
        chain = self.chain
        sizes = dict.fromkeys(chain.labels, 1) | {chain.labels[0]: size}
        ours = chain.share(draws)
        each = max(1, min(s.batch for s in chain.samplings.values()) // size)
        # Equally often on all processes, as policies may be divided among them.
        for start in range(0, processes.largest(len(ours)), each):
            part = ours[start : start + each]
            work = chain.descend(part, sizes, space=space, purpose=purpose, spare=draws[:1])
            of_first = work.first_of(len(work.stages) - 1)
            yield Examined(
                rollouts=work.judged,
                indices=[row % size for row in of_first.tolist()],
                refusals=list(_refusals(work, size)),
            )


def _refusals(work: ChainWork, size: int) -> Iterator[Refusal]:
    """What a policy of the chain wrote and the next could not take."""
    for number, stage in enumerate(work.stages):
        of_first = work.first_of(number)
        for row in stage.refused.nonzero().flatten().tolist():
            first = int(of_first[row])
            origin = work.stages[0].rollouts
            yield Refusal(
                by=work.stages[number + 1].label,
                row=origin.prompts[first],
                draw=int(origin.groups[first]),
                index=first % size,
                written={stage.label: text_of(stage.rollouts.completions[row], stage.label)},
                value=stage.value,
            )


def _judged(
    stages: Sequence[Stage], rows: Sequence[Row], written: Mapping[str, Sequence[Any]]
) -> Rollouts:
    """The last stage's rollouts as answers to the first rows, in their groups."""
    last, of_first = stages[-1].rollouts, stages[0].rollouts.groups.cpu()
    groups = of_first[firsts(stages)]
    return replace(
        last,
        prompts=rows,
        groups=groups.to(last.groups.device),
        facts={**last.facts, **written},
    )


def text_of(completion: Any, label: str) -> str:
    """A completion as the next policy's prompt: text, or what the last message says."""
    if isinstance(completion, Sequence) and not isinstance(completion, str) and completion:
        last = completion[-1]
        completion = last.get("content") if isinstance(last, Mapping) else completion
    if not isinstance(completion, str):
        raise UserError(
            f"chain: {label!r} gives {type(completion).__name__} and no text, so its completions "
            f"cannot be the prompts of the policy after it; only the last policy of a chain may "
            f"make something else"
        )
    return completion


def nothing_drawn() -> Rollouts:
    """No rollouts."""
    return Rollouts(
        prompts=[],
        completions=[],
        groups=torch.empty(0, dtype=torch.int64),
        mask=torch.empty(0, 0, dtype=torch.bool),
        truncated=torch.empty(0, dtype=torch.bool),
    )
