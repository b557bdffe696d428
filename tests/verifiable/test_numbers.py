"""`last_number` and `whole_number`."""

from __future__ import annotations

from fractions import Fraction

import pytest

from groupwise_verifiable.reading.numbers import last_number, whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 + 30 = 42.", 42),
        ("costs $1,234,567.50 a year", Fraction("1234567.5")),
        ("x = -3", -3),
        ("x = \u22123", -3),
        ("x = \u20133", -3),
        ("about .5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("-3 / 4 of it", Fraction(-3, 4)),
        ("1e3", 1000),
        ("The answer is **5**.", 5),
        ("Step 3 **5**", 5),
        ("_5_", 5),
        (r"\boxed{5}", 5),
        ("#### 5", 5),
        ("$5$", 5),
        ("US$5", 5),
        ("<b>5</b>", 5),
        ("5 %", 5),
        ("5 m^2 or so, I mean 5", 5),
        ("10\n- 5", 5),
        ("1. 5", 5),
        ("1) 5", 5),
        ("Total - 5", 5),
        ("(a) * 5", 5),
        ("3 + 2 (= 5)", 5),
        ("a=1,b=5", 5),
        ("-$5", -5),
        (r"-\$5", -5),
        ("It is -\u20ac5.", -5),
        (r"1{,}005", 1005),
        ("5 m^2", 5),
        ("5cm^{3}", 5),
        (r"5\text{ cm}^2", 5),
        (r"5 \mathrm{~km}^{2}.", 5),
        ("\u7b54\u6848\u662f5", 5),
        ("5,", 5),
    ],
)
def test_last_number(text: str, number: Fraction | int) -> None:
    last = last_number(text)
    assert last is not None
    assert last.value == number


@pytest.mark.parametrize(
    "text",
    [
        *("none", "1/0", "9" * 5000, "nan", "\u0665", "\u216b"),
        # Operands.
        *("2+5", "2 + 5", "10-5", "10 - 5", "10 -5", "10\u20135", "(2)-5", "(1 + 2) - 5", "3 * 5"),
        *(
            "2x+5",
            "x/5",
            "n \u00d7 5",
            "4 + (5",
            "4 + $5",
            r"2 \times 5",
            r"2 \cdot{5}",
            "2^5",
            "2**5",
        ),
        *("x^{5}", "x_5", r"\sqrt{5}", "\u221a5", r"\frac{1}{5}", "\u00b15", r"\pm 5"),
        # Parts of longer expressions.
        *("0x5", "0b5", "1e0005", "1e-9995", "1e999999999", "5e0.5", "1.2.5", "12:05", "3,5"),
        *("1,2345", "1,111,1111", "1\u202f005", "1_005", "1'005", "1{,}0055", "5\u00b2", "5\u0665"),
        *("x^2", "5 x^2", "5 m^5", "5 m^23", "10 -$5", "1 1/2"),
        *("--5", "+-5"),
    ],
)
def test_parts_of_expressions_are_not_numbers(text: str) -> None:
    assert last_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(
            (" $42. ", 42),
            ("1,000", 1000),
            ("42 apples", 42),
            ("4 2", None),
            ("", None),
            ("-1", -1),
        ),
        *((r"\$42", 42), (r"\boxed{42}", 42), ("**42**", 42), ("x = 42", 42), ("\uff14\uff12", 42)),
        *(("40+2 = 42", 42), ("1{,}000", 1000), ("42 dozen", 504), ("half of 42", None)),
        *(("40+2", None), ("84/2", None), ("42 or 43", None), ("41 = 42", None), ("42/1", None)),
        *(("07/8", None), ("7.0/8", None), ("7e0/8", None)),
    ],
)
def test_whole_number(text: str, number: int | None) -> None:
    result = whole_number(text)
    assert (result and result.value) == number


def test_is_fraction_and_is_reduced() -> None:
    for text, is_fraction, is_reduced in (
        ("3/4", True, True),
        ("-3 / 4", True, True),
        ("6/8", True, False),
        (r"\frac{6}{8}", True, False),
        ("0.75", False, True),
    ):
        number = whole_number(text)
        assert number is not None
        assert (number.is_fraction, number.is_reduced) == (is_fraction, is_reduced), text


def test_a_huge_exponent_is_not_evaluated() -> None:
    assert whole_number("1e999999999") is None
