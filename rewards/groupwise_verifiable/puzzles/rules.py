"""Rules for reasoning-gym tasks whose verifier accepts wrong answers.

A rule runs before the verifier, and returns False for answers that are wrong whatever the verifier
says. It is True for every right answer in the form that the question asks for. Each docstring says
which mistake of the verifier the rule corrects.
"""

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from groupwise_verifiable.reading.numbers import last_number, whole_number

Entry = Mapping[str, Any]
Rule = Callable[[str, Entry], bool]

# Tasks whose verifier cannot distinguish right from wrong answers.
REFUSED = {
    "propositional_logic": (
        "its verifier accepts whatever follows from the premises, so also a copied premise, or all "
        "of them joined"
    ),
}

_NOT_FINITE = re.compile(r"(?<!\w)(?:s?nan|inf|infinity)[ij]?(?!\w)", re.IGNORECASE)
# No match can start inside another, so that a search takes linear time.
_NUMBER = re.compile(r"(?<![0-9._])[0-9._]+(?:[eE]\+?[0-9]+)?")
_ARITHMETIC = re.compile(r"[-+*/()0-9\s]*")
_RELATIVE = Fraction(1, 100)

# Patterns that an answer must match.
_FORMS = {
    # The verifier accepts any text that begins with the right fraction.
    "fraction_simplification": re.compile(
        r"\$?\s*(?:\\d?frac\s*\{\s*[0-9]+\s*\}\s*\{\s*[0-9]+\s*\}|[0-9]+\s*/\s*[0-9]+)\s*\$?",
        re.IGNORECASE,
    ),
    # To the verifier NaN, also spelled "n a n", has no distance from the right answer.
    "complex_arithmetic": re.compile(r"[-+.()0-9eEijIJ\s]*"),
    # The verifier reads every A, B and C of any text: "banana" is BAAA.
    "quantum_lock": re.compile(r"[A-Ca-c\W]*"),
}


def admissible(task: str, answer: str, entry: Entry) -> bool:
    """Returns False for an answer that is wrong, whatever the task's verifier says."""
    if not _finite(answer) and _finite(str(entry["answer"])):
        return False
    form, rule = _FORMS.get(task), _RULES.get(task)
    if form is not None and not form.fullmatch(answer):
        return False
    return rule is None or rule(answer, entry)


def _finite(text: str) -> bool:
    """Whether the text has no infinity, no NaN, and no number too large for a float."""
    return not _NOT_FINITE.search(text) and not any(
        math.isinf(_float(match.group())) for match in _NUMBER.finditer(text)
    )


def _float(literal: str) -> float:
    try:
        return float(literal)
    except ValueError:  # 1.2.3
        return 0.0


def _halting(answer: str, entry: Entry) -> bool:
    """The verifier compares bool(string), which is True for every string but ""."""
    return answer.casefold() == str(entry["answer"]).casefold()


def _near(answer: str, entry: Entry) -> bool:
    """The verifier's absolute tolerance of 1e-4 or 1e-3 accepts 0 for a small gold answer.

    coin_flip's also compares leading characters: "0" matches "0.25".
    """
    number, right = whole_number(answer), whole_number(str(entry["answer"]))
    if number is None or right is None:
        return False
    return abs(number.value - right.value) <= _RELATIVE * abs(right.value)


def _countdown(answer: str, entry: Entry) -> bool:
    """The verifier overlooks the number 0x2a, and accepts powers, factorials and functions."""
    return _combines(answer, entry, entry["metadata"]["target"])


def _puzzle24(answer: str, entry: Entry) -> bool:
    """The verifier accepts any four numbers, and 24.9 for 24."""
    return _combines(answer, entry, 24)


def _combines(answer: str, entry: Entry, target: int) -> bool:
    """Whether the answer equals the target, using each of the row's numbers once, by + - * /."""
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
    """The exact value of an expression. Raises SyntaxError for more than arithmetic."""
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
    """The verifier's parser expands products itself, so the question would be a right answer."""
    gold, question = _bare(entry["answer"]), _bare(entry["metadata"]["polynomial_expr"])
    copied = _bare(answer) == question != gold
    return not copied and ("(" not in answer or "(" in gold)


def _roots(answer: str, entry: Entry) -> bool:
    """The verifier ignores what is no number: without roots, it accepts any text."""
    if not entry["answer"]:
        return not answer.strip("\"'")
    return answer.count(",") == entry["answer"].count(",")


def _sorted_numbers(answer: str, entry: Entry) -> bool:
    """The verifier accepts numbers that are off by up to 1."""
    try:
        numbers = sorted(map(float, json.loads(answer.replace("'", '"'))))
    except (ValueError, TypeError):
        return False
    return numbers == sorted(map(float, entry["metadata"]["original_numbers"]))


def _one_number(answer: str, entry: Entry) -> bool:
    """The verifier reads the first number of any text, without its sign."""
    number, right = last_number(answer), whole_number(str(entry["answer"]))
    return number is not None and right is not None and number.value == right.value


def _same_word(answer: str, entry: Entry) -> bool:
    """The verifier accepts any word with ten right letters."""
    return _bare(answer).casefold() == _bare(entry["answer"]).casefold()


def _no_more_words(answer: str, entry: Entry) -> bool:
    """The verifier ignores text after a right answer."""
    return len(answer.split()) <= len(entry["answer"].split())


def _as_many_items(answer: str, entry: Entry) -> bool:
    """As for `_no_more_words`."""
    return answer.count(",") == entry["answer"].count(",")


def _few_steps(answer: str, entry: Entry) -> bool:
    """The verifier accepts any number of steps, and random ones solve some boards in the end."""
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
