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

    size: how many of all 81,000.
    """

    def __init__(self, size: int = 81_000) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, str]:
        number = range(self.size)[index] * 34_567 % 81_000  # each once: they have no common factor
        left, right = 100 + number // 90, 10 + number % 90
        return {"prompt": f"{left} * {right} =", "answer": str(left * right)}
