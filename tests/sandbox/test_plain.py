"""Plain data: what crosses between a program and its tests, and what is refused."""

import math
from itertools import count, repeat

import pytest

from groupwise_sandbox import plain

VALUES = [
    *(None, True, "text", 2**53, -(2**64), 0.1, math.inf, 1 + 2j, b"bytes"),
    *([1, [2]], (1, 2), {1, 2}, {(1, 2): [3]}, range(2, 9, 3)),
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_read_back_as_it_was(value):
    assert plain.decoded(plain.encoded(value)) == value
    assert type(plain.decoded(plain.encoded(value))) is type(value)


def test_whole_numbers_that_a_float_does_not_hold_are_written_as_texts():
    assert plain.encoded(2**53 - 1) == 2**53 - 1
    assert plain.encoded(2**53 + 1) == {"int": hex(2**53 + 1)}


def test_an_iterator_gives_a_bounded_number_of_values():
    some = plain.decoded(plain.encoded(iter([1, 2])))
    assert [*some] == [1, 2]
    assert len(plain.encoded(repeat(0, plain.LENGTH))["iterator"]) == plain.LENGTH
    with pytest.raises(plain.BoundError, match="more than 100,000 values"):
        plain.encoded(count())


def test_what_is_nested_too_deep_is_refused_both_ways():
    value = data = []
    for _ in range(plain.DEPTH + 2):
        value, data = [value], [data]
    for read in (plain.encoded, plain.decoded):
        with pytest.raises(plain.BoundError, match="deep"):
            read(value)
