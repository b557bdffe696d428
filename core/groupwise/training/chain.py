"""Chain: several policies; the completion of each is the prompt of the next."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from groupwise import processes
from groupwise.errors import UserError
from groupwise.prompt_source import Row
from groupwise.prompts.draws import Draw
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.training.evaluation_subject import EvaluationBatch, EvaluationSubject, Refusal
from groupwise.training.sampling import Sampling
from groupwise.training.team import Team
from groupwise.training.work import ChainWork, Stage, Work, roots, with_logged


@dataclass(frozen=True, kw_only=True)
class _Prompt:
    """A prompt for one policy of the chain.

    row: the dataset row, the prompt of the first policy; parent: the rollout of the policy before
    that wrote this prompt; written: by label, the texts that the policies before wrote.
    """

    draw: Draw
    row: Row
    parent: int = 0
    written: Mapping[str, str] = field(default_factory=dict)


class Chain(Team):
    """Several policies; the completion of each is the prompt of the next.

    sizes: by label, how many completions a policy samples for each of its prompts; refused: the
    value of each reward for a completion that the next policy cannot take. Rewards judge the last
    policy's rollouts as answers to the dataset rows; the texts of the other policies are among
    their facts, by label.
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
    def subjects(self) -> Mapping[str, EvaluationSubject]:
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
        """Sample from each policy in turn; ours: draws of this process.

        spare: a draw to sample and drop, for the collectives of a sharded policy. Raises UserError
        if a completion that becomes a prompt is no text.
        """
        stages: list[Stage] = []
        prompts = [_Prompt(draw=draw, row=draw.row) for draw in ours]
        for label in self.labels:
            size = sizes[label]
            rollouts = self._drawn(
                label, [p.draw for p in prompts], size, space=space, purpose=purpose, spare=spare
            )
            answered = [prompt for prompt in prompts for _ in range(size)]
            is_last = label == self.labels[-1]
            following = answered if is_last else self._next(label, rollouts, answered, size)
            stages.append(
                Stage(
                    label=label,
                    rollouts=rollouts,
                    parents=torch.tensor([p.parent for p in answered], dtype=torch.int64),
                    refused=torch.tensor([p is None for p in following], dtype=torch.bool)
                    & ~rollouts.failed,
                    value=self.refused[label],
                )
            )
            prompts = [prompt for prompt in following if prompt is not None]
        judged = _judged(stages, prompts, self.writers)
        return ChainWork(judged=judged, stages=[self._bare(stage) for stage in stages])

    def _bare(self, stage: Stage) -> Stage:
        logged = self.samplings[stage.label].policy.logged
        return replace(stage, rollouts=with_logged(stage.rollouts, logged))

    def _next(
        self, label: str, rollouts: Rollouts, answered: Sequence["_Prompt"], size: int
    ) -> list["_Prompt | None"]:
        """A policy's completions as prompts of the next; None for one that failed, or that the next
        cannot take."""
        policy = self.samplings[self.labels[self.labels.index(label) + 1]].policy
        prompts: list[_Prompt | None] = []
        failed = rollouts.failed.tolist()
        for number, (prompt, completion) in enumerate(
            zip(answered, rollouts.completions, strict=True)
        ):
            if failed[number]:
                prompts.append(None)
                continue
            text = text_of(completion, label)
            row = {**prompt.row, "prompt": text}
            draw = Draw(number=prompt.draw.number * size + number % size, row=row)
            written = {**prompt.written, label: text}
            new = _Prompt(draw=draw, row=prompt.row, parent=number, written=written)
            prompts.append(None if policy.skips(row) else new)
        return prompts

    def _drawn(
        self,
        label: str,
        draws: Sequence[Draw],
        size: int,
        *,
        space: str,
        purpose: Purpose,
        spare: Sequence[Draw],
    ) -> Rollouts:
        """`size` rollouts of one policy for each draw; empty if there are no draws."""
        sampling = self.samplings[label]
        if purpose == "greedy" and not sampling.greedy:
            purpose = "evaluate"
        most = processes.largest(len(draws))
        drawn = sampling.draw_own(
            draws,
            size,
            space=f"{space}/{label}",
            purpose=purpose,
            most=most,
            spare=draws[:1] or spare,
        )
        parts = [*map(Rollouts.with_facts_on_cpu, drawn)]
        return Rollouts.concat(parts) if parts else nothing_drawn()


class Together:
    """A chain, evaluated as a whole: the first policy samples `size` completions, others one."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    @property
    def greedy(self) -> bool:
        return any(sampling.greedy for sampling in self.chain.samplings.values())

    def sample(
        self, draws: Sequence[Draw], size: int, purpose: Purpose, *, space: str
    ) -> Iterator[EvaluationBatch]:
        chain = self.chain
        sizes = dict.fromkeys(chain.labels, 1) | {chain.labels[0]: size}
        ours = chain.share(draws)
        each = max(1, min(s.batch for s in chain.samplings.values()) // size)
        # Equally often on all processes: sampling of a sharded policy is a collective.
        for start in range(0, processes.largest(len(ours)), each):
            part = ours[start : start + each]
            work = chain.descend(part, sizes, space=space, purpose=purpose, spare=draws[:1])
            first_rows = work.roots(len(work.stages) - 1)
            yield EvaluationBatch(
                rollouts=work.judged,
                indices=[row % size for row in first_rows.tolist()],
                refusals=list(_refusals(work, size)),
                failures=work.failures,
            )


def _refusals(work: ChainWork, size: int) -> Iterator[Refusal]:
    """The completions that did not become prompts of the next policy of the chain."""
    origin = work.stages[0].rollouts
    for number, stage in enumerate(work.stages[:-1]):
        first_rows, rollouts = work.roots(number), stage.rollouts
        for row in (stage.refused | rollouts.failed).nonzero().flatten().tolist():
            first = int(first_rows[row])
            yield Refusal(
                by=work.stages[number + 1].label,
                row=origin.prompts[first],
                draw=int(origin.groups[first]),
                index=first % size,
                written=_written(stage, row),
                value=stage.value,
                failure=rollouts.failures[row] if rollouts.failures else None,
            )


def _written(stage: Stage, row: int) -> dict[str, str]:
    """The text of a completion by its policy's label; nothing if it failed."""
    if stage.rollouts.failures and stage.rollouts.failures[row] is not None:
        return {}
    return {stage.label: text_of(stage.rollouts.completions[row], stage.label)}


def _judged(
    stages: Sequence[Stage], prompts: Sequence[_Prompt], writers: Sequence[str]
) -> Rollouts:
    """The last stage's rollouts as answers to the dataset rows, with the groups of the first."""
    last, first_groups = stages[-1].rollouts, stages[0].rollouts.groups.cpu()
    written = {label: [prompt.written[label] for prompt in prompts] for label in writers}
    return replace(
        last,
        prompts=[prompt.row for prompt in prompts],
        groups=first_groups[roots(stages)].to(last.groups.device),
        facts={**last.facts, **written},
    )


def text_of(completion: Any, label: str) -> str:
    """A completion as text for the next policy; of chat messages, the content of the last."""
    if isinstance(completion, Sequence) and not isinstance(completion, str) and completion:
        last = completion[-1]
        completion = last.get("content") if isinstance(last, Mapping) else completion
    if not isinstance(completion, str):
        raise UserError(
            f"chain: expected text from {label!r}, since its completions are the prompts of the "
            f"next policy, received {type(completion).__name__}; only the last policy of a chain "
            f"may return anything else"
        )
    return completion


def nothing_drawn() -> Rollouts:
    """An empty batch of rollouts."""
    return Rollouts(
        prompts=[],
        completions=[],
        groups=torch.empty(0, dtype=torch.int64),
        mask=torch.empty(0, 0, dtype=torch.bool),
        truncated=torch.empty(0, dtype=torch.bool),
    )
