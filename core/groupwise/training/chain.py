"""Chain: policies of which each one's completion is the next one's prompt."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from groupwise import processes
from groupwise.errors import UserError
from groupwise.prompts.draws import Draw
from groupwise.prompts.source import Row
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.training.examinee import Examined, Examinee, Refusal
from groupwise.training.sampling import Sampling
from groupwise.training.team import Team
from groupwise.training.work import ChainWork, Stage, Work, firsts


@dataclass(frozen=True, kw_only=True)
class _Due:
    """A prompt that a policy of the chain is to answer.

    row: that which the first policy received; parent: which rollout of the policy before it is;
    written: what came of the row on the way, by label.
    """

    draw: Draw
    row: Row
    parent: int = 0
    written: Mapping[str, str] = field(default_factory=dict)


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
        due = [_Due(draw=draw, row=draw.row) for draw in ours]
        for label in self.labels:
            size = sizes[label]
            rollouts = self._drawn(
                label, [one.draw for one in due], size, space=space, purpose=purpose, spare=spare
            )
            answered = [one for one in due for _ in range(size)]
            is_last = label == self.labels[-1]
            handed_on = answered if is_last else self._handed_on(label, rollouts, answered, size)
            stages.append(
                Stage(
                    label=label,
                    rollouts=rollouts,
                    parents=torch.tensor([one.parent for one in answered], dtype=torch.int64),
                    refused=torch.tensor([one is None for one in handed_on], dtype=torch.bool),
                    value=self.refused[label],
                )
            )
            due = [one for one in handed_on if one is not None]
        return ChainWork(judged=_judged(stages, due, self.writers), stages=stages)

    def _handed_on(
        self, label: str, rollouts: Rollouts, answered: Sequence["_Due"], size: int
    ) -> list["_Due | None"]:
        """What a policy wrote, as the next one's prompts; None where that one cannot take it."""
        following = self.samplings[self.labels[self.labels.index(label) + 1]].policy
        handed_on: list[_Due | None] = []
        for number, (one, completion) in enumerate(
            zip(answered, rollouts.completions, strict=True)
        ):
            text = text_of(completion, label)
            row = {**one.row, "prompt": text}
            draw = Draw(number=one.draw.number * size + number % size, row=row)
            written = {**one.written, label: text}
            due = _Due(draw=draw, row=one.row, parent=number, written=written)
            handed_on.append(None if following.skips(row) else due)
        return handed_on

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
            due,
            size,
            space=f"{space}/{label}",
            purpose=purpose,
            most=most,
            spare=due[:1] or spare,
        )
        parts = list(drawn)
        return Rollouts.concat(parts) if parts else nothing_drawn()


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


def _judged(stages: Sequence[Stage], due: Sequence[_Due], writers: Sequence[str]) -> Rollouts:
    """The last stage's rollouts as answers to the first rows, in their groups."""
    last, of_first = stages[-1].rollouts, stages[0].rollouts.groups.cpu()
    written = {label: [one.written[label] for one in due] for label in writers}
    return replace(
        last,
        prompts=[one.row for one in due],
        groups=of_first[firsts(stages)].to(last.groups.device),
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
