"""Team: the policies that sample the rollouts of a step: one policy, or a pool."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence

from groupwise.config.learners import SOLE
from groupwise.prompts.draws import Draw
from groupwise.rollouts import Rollouts
from groupwise.training.evaluation_subject import EvaluationSubject, SinglePolicy
from groupwise.training.sampling import Sampling
from groupwise.training.work import PoolWork, SoloWork, Work


class Team(ABC):
    """The policies of a run as samplers. All processes must call its methods in the same order.

    samplings: by label, one `Sampling` per policy. writers: in a chain, the labels of the policies
    before the last, whose texts are facts of the judged rollouts.
    """

    writers: Sequence[str] = ()

    def __init__(self, samplings: Mapping[str, Sampling]) -> None:
        self.samplings = samplings

    def begin(self, step: int) -> None:
        for sampling in self.samplings.values():
            sampling.policy.begin(step)

    def follow(self, weights: Mapping[str, str | None], version: int) -> None:
        """Make each sampler follow the kept weights of that name, or the current ones if None."""
        for label, sampling in self.samplings.items():
            sampling.follow(weights.get(label), version)

    def forget(self) -> None:
        """Weights were loaded, so samplers must follow them again."""
        for sampling in self.samplings.values():
            sampling.forget()

    def share(self, draws: Sequence[Draw]) -> Sequence[Draw]:
        """This process's share of the draws."""
        return next(iter(self.samplings.values())).share(draws)

    @property
    def draws_itself(self) -> bool:
        """Whether every policy is its own sampler, so that none can sample during an update."""
        return all(s.sampler is s.policy for s in self.samplings.values())

    @property
    def logged(self) -> Collection[str]:
        """Facts of the judged rollouts whose means are metrics."""
        return frozenset().union(*(s.policy.logged for s in self.samplings.values()))

    @property
    @abstractmethod
    def subjects(self) -> Mapping[str, EvaluationSubject]:
        """What is evaluated, by label; "" for the run as a whole."""

    @abstractmethod
    def draw(self, draws: Sequence[Draw]) -> Iterator[Work]:
        """The rollouts to train on, for this process's share of the draws.

        A process without a share samples the first draw, and later drops it: collectives of a
        sharded policy need every process.
        """


class Solo(Team):
    """One policy; group_size: rollouts of each prompt."""

    def __init__(self, sampling: Sampling, group_size: int) -> None:
        super().__init__({SOLE: sampling})
        self.sampling, self.group_size = sampling, group_size

    @property
    def subjects(self) -> Mapping[str, EvaluationSubject]:
        return {"": SinglePolicy(self.sampling)}

    def draw(self, draws: Sequence[Draw]) -> Iterator[Work]:
        drawn = self.sampling.draw(
            draws, self.group_size, space="train", purpose="train", idle=True
        )
        for rollouts in drawn:
            yield SoloWork(judged=rollouts)
            del rollouts  # else this frame holds them while the next ones are sampled


class Pool(Team):
    """Several policies that share every group; each: rollouts of a prompt by each of them.

    Each has its own seeds, and each is evaluated alone.
    """

    def __init__(self, samplings: Mapping[str, Sampling], each: int) -> None:
        super().__init__(samplings)
        self.each = each

    @property
    def subjects(self) -> Mapping[str, EvaluationSubject]:
        return {label: SinglePolicy(s, label) for label, s in self.samplings.items()}

    def draw(self, draws: Sequence[Draw]) -> Iterator[Work]:
        ours = self.share(draws) or draws[:1]
        own = {}
        for label, sampling in self.samplings.items():
            drawn = sampling.draw(
                draws, self.each, space=f"train/{label}", purpose="train", idle=True
            )
            # The parts wait for those of the other policies, so not on the device.
            own[label] = Rollouts.concat([*map(Rollouts.with_facts_on_cpu, drawn)])
        logged = {label: s.policy.logged for label, s in self.samplings.items()}
        yield PoolWork.of(own, len(ours), logged)
