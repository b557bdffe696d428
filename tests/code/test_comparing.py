"""Plain values and outputs are compared as the reward's page says."""

import math

import pytest

from groupwise_code.comparing import same_output, same_value

EQUAL = [
    ((1, 2), [1, 2]),
    ([0.1 + 0.2], [0.3]),
    ({"a": [1.0]}, {"a": [1.0]}),
    (math.nan, math.nan),
    (2, 2.0),
]
DIFFERENT = [
    ([1], [1, 2]),
    ([1, 2], [1]),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"a": 1, "b": 2}, {"a": 1}),
    (1, True),
    (None, 0),
    (0.5, math.nan),
    (math.nan, 0.5),
    ("1", 1),
    (10**400, 1e300),
]


@pytest.mark.parametrize(("found", "expected"), EQUAL)
def test_values_that_are_equal(found, expected):
    assert same_value(found, expected)


@pytest.mark.parametrize(("found", "expected"), DIFFERENT)
def test_values_that_differ(found, expected):
    assert not same_value(found, expected)


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1  2\n", "1 2", True),
        ("0.30000001", "0.3", True),
        ("0.30000001", "1", False),
        ("3", "3.0", True),
        ("3.0", "3", False),
        ("1\n2", "1 2", False),
        ("1 2 3", "1 2", False),
        ("nan", "0.5", False),
    ],
)
def test_outputs(printed, expected, same):
    assert same_output(printed, expected) is same
