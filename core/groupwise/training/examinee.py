"""Examinee: what an evaluation asks: a policy alone, or several as a whole."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from groupwise.prompts.draws import Draw
from groupwise.prompts.source import Row
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.training.sampling import Sampling


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
