"""Algorithms that are composed of parts: as arguments, or among base classes."""

import pytest
from pydantic import Field, ValidationError

from groupwise.algorithm import Algorithm
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.parts import (
    Clipped,
    Composed,
    GroupCentred,
    GroupRelative,
    Options,
    Part,
    SequenceRatio,
    Usual,
)


class Scaled(Clipped):
    """Another surrogate, with an option."""

    class Config(Clipped.Config):
        factor: float = Field(2.0, gt=0)

    def surrogate(self, current, batch):
        return self.config.factor * super().surrogate(current, batch)


def test_a_variant_has_the_options_of_its_parts():
    class Mine(Usual, advantage=GroupCentred, surrogate=Scaled):
        class Config(Usual.Config):
            normalize: str = "token"

    options = Mine.Config(clip_low=0.1, least_std=0.2)
    assert (options.factor, options.normalize, options.clip_low) == (2.0, "token", 0.1)
    with pytest.raises(ValidationError, match="Extra inputs"):
        Mine.Config(scale="batch")  # GroupRelative has it


def test_a_part_among_the_base_classes_is_an_argument():
    class Inherits(SequenceRatio, Clipped, GroupRelative, Usual):
        class Config(Usual.Config, GroupRelative.Config, Clipped.Config):
            clip_low: float = 0.3

    assert Inherits.__bases__ == (Usual,)
    assert Inherits.kinds == {**GRPO.kinds, "ratio": SequenceRatio}
    assert Inherits().couples_decisions
    assert Inherits().config.clip_low == 0.3


def test_of_several_base_classes_the_first_gives_the_part():
    class One(Composed, surrogate=Scaled):
        pass

    class Both(One, GRPO):
        pass

    assert Both.kinds["surrogate"] is Scaled
    assert Both.kinds["advantage"] is GroupRelative


def test_grpo_is_not_deep():
    assert [kind.__name__ for kind in GRPO.__mro__[:4]] == [
        "GRPO",
        "Usual",
        "Composed",
        "Algorithm",
    ]
    assert GRPO.__mro__[3] is Algorithm


def test_what_parts_declare_is_united():
    class Sees(Part):
        slot = "observations"
        needs = frozenset({"seen"})

    class Mine(Composed, observations=Sees):
        needs = frozenset({"log_probs", "own"})

    assert Mine().needs == {"log_probs", "own", "seen"}


def test_a_flag_of_a_part_gives_way_to_what_the_class_says():
    class Cut(GRPO, ratio=SequenceRatio):
        couples_decisions = False

    assert not Cut().couples_decisions
    assert Cut(Cut.Config(importance="sequence")).couples_decisions


def test_options_of_a_part_that_is_not_taken_are_refused():
    with pytest.raises(TypeError, match="has the options of Clipped, a part that it does not take"):

        class Mine(GRPO, surrogate=Part):
            pass


def test_an_unknown_part_is_refused():
    with pytest.raises(
        TypeError, match="critic is not a part of an algorithm; these are advantage"
    ):

        class Mine(Usual, critic=Clipped):
            pass


def test_parts_alone_are_no_algorithm():
    with pytest.raises(TypeError, match="derive it from Composed, too"):

        class Mine(Clipped, GroupRelative):
            pass


def test_without_parts_there_are_no_options():
    class Bare(Composed):
        pass

    assert Bare.Config is Options
