"""Usual: the parts that most variants take as they are."""

from groupwise.algorithms.parts.divisor import Divisor
from groupwise.algorithms.parts.entropy import EntropyBonus
from groupwise.algorithms.parts.importance import ImportanceWeights
from groupwise.algorithms.parts.reference import ReferenceKL
from groupwise.algorithms.parts.teacher import Teacher


class Usual(Teacher, ImportanceWeights, Divisor, EntropyBonus, ReferenceKL):
    """A divisor, importance weights, an entropy bonus, a KL in the loss and a teacher.

    What is missing are advantages and a surrogate.
    """

    class Config(
        ImportanceWeights.Config,
        Divisor.Config,
        EntropyBonus.Config,
        ReferenceKL.Config,
        Teacher.Config,
    ):
        pass

    config: Config
