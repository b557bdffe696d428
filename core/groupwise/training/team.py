"""Team: the policies of a run as they draw the rollouts of a step: one, or a pool."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence

from groupwise.config.learners import SOLE
from groupwise.prompts.draws import Draw
from groupwise.rollouts import Rollouts
from groupwise.training.examinee import Alone, Examinee
from groupwise.training.sampling import Sampling
from groupwise.training.work import PoolWork, SoloWork, Work


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
    """Several policies that fill the same groups; each: rollouts of a prompt by one of them.

    Each has seeds of its own, and each is evaluated alone.
    """

    def __init__(self, samplings: Mapping[str, Sampling], each: int) -> None:
        super().__init__(samplings)
        self.each = each

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
