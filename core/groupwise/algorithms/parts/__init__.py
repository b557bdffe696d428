"""Parts of algorithms: surrogate, advantages, divisor, divergence; a variant is a choice of them.

Each is a class with the options that it adds and the methods of `Composed` that it fills in, and is
an argument of the variant's class: `class Mine(Usual, advantage=GroupRelative, surrogate=Clipped)`.
"""

from groupwise.algorithms.parts.advantages import Advantages, GroupCentred, GroupRelative
from groupwise.algorithms.parts.against_sampler import AgainstSampler
from groupwise.algorithms.parts.clipped import Clipped
from groupwise.algorithms.parts.composed import Composed
from groupwise.algorithms.parts.credit import Credit
from groupwise.algorithms.parts.divergence import Beta, Divergence
from groupwise.algorithms.parts.divisor import Divisor
from groupwise.algorithms.parts.entropy import EntropyBonus
from groupwise.algorithms.parts.guarded_ratio import GuardedRatio, Weighted
from groupwise.algorithms.parts.importance import ImportanceWeights
from groupwise.algorithms.parts.observations import Observations
from groupwise.algorithms.parts.part import Options, Part
from groupwise.algorithms.parts.reference import Reference, ReferenceKL
from groupwise.algorithms.parts.sequence_ratio import SequenceRatio
from groupwise.algorithms.parts.teacher import Teacher
from groupwise.algorithms.parts.usual import Usual

__all__ = [
    "Advantages",
    "AgainstSampler",
    "Beta",
    "Clipped",
    "Composed",
    "Credit",
    "Divergence",
    "Divisor",
    "EntropyBonus",
    "GroupCentred",
    "GroupRelative",
    "GuardedRatio",
    "ImportanceWeights",
    "Observations",
    "Options",
    "Part",
    "Reference",
    "ReferenceKL",
    "SequenceRatio",
    "Teacher",
    "Usual",
    "Weighted",
]
