"""EvaluationSubject: what an evaluation samples from: a single policy, or a chain of policies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from groupwise.prompt_source import Row
from groupwise.prompts.draws import Draw
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise.training import failures
from groupwise.training.sampling import Sampling


class EvaluationSubject(Protocol):
    """What is evaluated: a single policy, or a chain of policies."""

    @property
    def greedy(self) -> bool:
        """Whether it has a greedy mode."""

    def sample(
        self, draws: Sequence[Draw], size: int, purpose: Purpose, *, space: str
    ) -> Iterator["EvaluationBatch"]:
        """`size` completions for each draw of this process's share; space: of the seeds."""


@dataclass(frozen=True, kw_only=True)
class EvaluationBatch:
    """Completions to judge; indices: the number of each among the completions of its prompt.

    refusals: completions that are missing, since the next policy of a chain could not take them;
    failures: why completions failed, of all policies; see `failures.of_policies`.
    """

    rollouts: Rollouts
    indices: Sequence[int]
    refusals: Sequence["Refusal"] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A completion that the next policy of a chain could not take as its prompt.

    by: the label of that next policy; written: the text, by the label of the policy that wrote it;
    value: the value of each reward for it; failure: why the completion failed, and so is not a
    prompt; None if it was refused.
    """

    by: str
    row: Row
    draw: int
    index: int
    written: Mapping[str, str]
    value: float
    failure: str | None = None


class SinglePolicy:
    """One policy, evaluated by itself; label: in a pool."""

    def __init__(self, sampling: Sampling, label: str = "") -> None:
        self.sampling, self.label = sampling, label

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy

    def sample(
        self, draws: Sequence[Draw], size: int, purpose: Purpose, *, space: str
    ) -> Iterator[EvaluationBatch]:
        for rollouts in self.sampling.draw(draws, size, space=space, purpose=purpose):
            indices = [row % size for row in range(len(rollouts))]
            why = failures.of_policies({self.label: rollouts})
            yield EvaluationBatch(rollouts=rollouts, indices=indices, failures=why)
            del rollouts  # else this frame holds them while the next ones are sampled
