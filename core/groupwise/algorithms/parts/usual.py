"""Usual: the parts that most variants take as they are."""

from groupwise.algorithms.parts.composed import Composed
from groupwise.algorithms.parts.divisor import Divisor
from groupwise.algorithms.parts.entropy import EntropyBonus
from groupwise.algorithms.parts.importance import ImportanceWeights
from groupwise.algorithms.parts.observations import Observations
from groupwise.algorithms.parts.reference import ReferenceKL
from groupwise.algorithms.parts.teacher import Teacher


class Usual(
    Composed,
    divisor=Divisor,
    importance=ImportanceWeights,
    observations=Observations,
    entropy=EntropyBonus,
    divergence=ReferenceKL,
    teacher=Teacher,
):
    """A divisor, importance weights, observations, an entropy bonus, a KL in the loss, a teacher.

    What is missing are advantages and a surrogate.
    """

    class Config(
        ImportanceWeights.Config,
        Divisor.Config,
        Observations.Config,
        EntropyBonus.Config,
        ReferenceKL.Config,
        Teacher.Config,
    ):
        pass

    config: Config
