"""Products of numbers: the questions of `examples/calculator.yaml`, and a calculator for them."""

import operator
import re

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calculate(expression: str) -> int:
    """Compute a sum, a difference or a product.

    Args:
        expression: two whole numbers with +, - or * between them
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*([-+*])\s*(\d{1,9})\s*", expression)
    if match is None:
        raise ValueError(f"expected two numbers with +, - or * between them, found {expression!r}")
    left, sign, right = match.groups()
    return SIGNS[sign](int(left), int(right))


class Products:
    """Rows with a question and its answer: a number of three digits times one of two, in a mixed
    order.

    size: how many of all 81,000; digits: of their answers, 4 or 5; both if None.
    """

    def __init__(self, size: int | None = None, digits: int | None = None) -> None:
        # Each number once: 34,567 and 81,000 have no common factor.
        rows = (_row(n * 34_567 % 81_000) for n in range(81_000))
        self.rows = [row for row in rows if digits in (None, len(row["answer"]))][:size]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, str]:
        return self.rows[index]


def _row(number: int) -> dict[str, str]:
    left, right = 100 + number // 90, 10 + number % 90
    return {"prompt": f"{left} * {right} =", "answer": str(left * right)}
