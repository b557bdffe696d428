"""Which answers are wrong whatever the verifier of their reasoning-gym task says, and why.

A rule stands in front of a verifier that gives wrong answers the value of right ones. It is True
for every right answer in the form that the question asks for.
"""

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from groupwise_verifiable.numbers import last_number, whole_number

Entry = Mapping[str, Any]
Rule = Callable[[str, Entry], bool]

# By these verifiers nobody can tell a right answer from a wrong one.
REFUSED = {
    "propositional_logic": (
        "its verifier takes whatever follows from the premises, and so each premise, copied, or "
        "all of them joined"
    ),
}

_NOT_FINITE = re.compile(r"(?<!\w)(?:s?nan|inf|infinity)[ij]?(?!\w)", re.IGNORECASE)
# A match starts where no other could have started before it, so that a search takes linear time.
_NUMBER = re.compile(r"(?<![0-9._])[0-9._]+(?:[eE]\+?[0-9]+)?")
_ARITHMETIC = re.compile(r"[-+*/()0-9\s]*")
_RELATIVE = Fraction(1, 100)

# What an answer may be written with.
_FORMS = {
    # The verifier reads the first fraction of any text that begins with one.
    "fraction_simplification": re.compile(
        r"\$?\s*(?:\\d?frac\s*\{\s*[0-9]+\s*\}\s*\{\s*[0-9]+\s*\}|[0-9]+\s*/\s*[0-9]+)\s*\$?",
        re.IGNORECASE,
    ),
    # The distance of "not a number", also spelled "n a n", is none to the verifier.
    "complex_arithmetic": re.compile(r"[-+.()0-9eEijIJ\s]*"),
    # The verifier presses every A, B and C of any text: "banana" is BAAA.
    "quantum_lock": re.compile(r"[A-Ca-c\W]*"),
}


def admissible(task: str, answer: str, entry: Entry) -> bool:
    """Returns False for an answer that is wrong and that the task's verifier is not to see."""
    if not _finite(answer) and _finite(str(entry["answer"])):
        return False
    form, rule = _FORMS.get(task), _RULES.get(task)
    if form is not None and not form.fullmatch(answer):
        return False
    return rule is None or rule(answer, entry)


def _finite(text: str) -> bool:
    """Whether the text names no infinity, no "not a number", and no number above all floats."""
    return not _NOT_FINITE.search(text) and not any(
        math.isinf(_float(match.group())) for match in _NUMBER.finditer(text)
    )


def _float(literal: str) -> float:
    try:
        return float(literal)
    except ValueError:  # 1.2.3
        return 0.0


def _halting(answer: str, entry: Entry) -> bool:
    """The verifier compares the truth of two strings: that of every string but "" is True."""
    return answer.casefold() == str(entry["answer"]).casefold()


def _near(answer: str, entry: Entry) -> bool:
    """A tolerance of 1e-4 or 1e-3 makes 0 right where the gold answer is small.

    coin_flip also compares leading characters, of which those of "0" are those of "0.25".
    """
    number, right = whole_number(answer), whole_number(str(entry["answer"]))
    if number is None or right is None:
        return False
    return abs(number.value - right.value) <= _RELATIVE * abs(right.value)


def _countdown(answer: str, entry: Entry) -> bool:
    """The verifier sees no number in 0x2a, and takes powers, factorials and functions."""
    return _combines(answer, entry, entry["metadata"]["target"])


def _puzzle24(answer: str, entry: Entry) -> bool:
    """The verifier takes any four numbers, and 24.9 for 24."""
    return _combines(answer, entry, 24)


def _combines(answer: str, entry: Entry, target: int) -> bool:
    """Whether the answer makes the target, each number of the row used once, by + - * and /."""
    numbers = sorted(map(str, entry["metadata"]["numbers"]))
    if not _ARITHMETIC.fullmatch(answer) or sorted(re.findall(r"[0-9]+", answer)) != numbers:
        return False
    try:
        return _value(ast.parse(answer.strip(), mode="eval").body) == target
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError):  # or nested too deep
        return False


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _value(node: ast.expr) -> Fraction:
    """The exact value of an expression; a SyntaxError where it is more than arithmetic."""
    match node:
        case ast.Constant(value=int() as number):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATIONS:
            return _OPERATIONS[type(sign)](_value(left), _value(right))
    raise SyntaxError("only + - * / and brackets")


def _expanded(answer: str, entry: Entry) -> bool:
    """The verifier's parser multiplies by itself: 2*(x + 1) is 2*x + 2, the question its answer."""
    gold, question = _bare(entry["answer"]), _bare(entry["metadata"]["polynomial_expr"])
    copied = _bare(answer) == question != gold
    return not copied and ("(" not in answer or "(" in gold)


def _roots(answer: str, entry: Entry) -> bool:
    """The verifier skips what is no number; where there are no roots, any text has none."""
    if not entry["answer"]:
        return not answer.strip("\"'")
    return answer.count(",") == entry["answer"].count(",")


def _sorted_numbers(answer: str, entry: Entry) -> bool:
    """The verifier takes a number for another that is not more than 1 away."""
    try:
        numbers = sorted(map(float, json.loads(answer.replace("'", '"'))))
    except (ValueError, TypeError):
        return False
    return numbers == sorted(map(float, entry["metadata"]["original_numbers"]))


def _one_number(answer: str, entry: Entry) -> bool:
    """The verifier takes the first number of any text, without its sign."""
    number, right = last_number(answer), whole_number(str(entry["answer"]))
    return number is not None and right is not None and number.value == right.value


def _same_word(answer: str, entry: Entry) -> bool:
    """The verifier's tenth right letter makes a word right, however long it is."""
    return _bare(answer).casefold() == _bare(entry["answer"]).casefold()


def _no_more_words(answer: str, entry: Entry) -> bool:
    """The verifier does not see what follows a right answer."""
    return len(answer.split()) <= len(entry["answer"].split())


def _as_many_items(answer: str, entry: Entry) -> bool:
    """As for `_no_more_words`."""
    return answer.count(",") == entry["answer"].count(",")


def _few_steps(answer: str, entry: Entry) -> bool:
    """Steps without aim solve some boards in the end."""
    return len(answer) <= 2 * len(entry["answer"])


def _few_moves(answer: str, entry: Entry) -> bool:
    """As for `_few_steps`; a move of four squares may be written as four moves."""
    return answer.count("+") + answer.count("-") <= 4 * entry["metadata"]["min_moves"]


def _bare(text: str) -> str:
    return "".join(text.split())


_RULES: dict[str, Rule] = {
    "advanced_geometry": _as_many_items,
    "coin_flip": _near,
    "countdown": _countdown,
    "decimal_arithmetic": _near,
    "figlet_font": _same_word,
    "game_of_life_halting": _halting,
    "gsm_symbolic": _one_number,
    "letter_jumble": _no_more_words,
    "number_sorting": _sorted_numbers,
    "polynomial_equations": _roots,
    "polynomial_multiplication": _expanded,
    "puzzle24": _puzzle24,
    "rush_hour": _few_moves,
    "sokoban": _few_steps,
    "time_intervals": _no_more_words,
    "word_sorting": _as_many_items,
}
