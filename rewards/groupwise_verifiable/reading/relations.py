"""Equations and chains of them: x = 2 + 3 = 5, solved for a name, everything on one side."""

import re
from collections.abc import Callable
from fractions import Fraction

from groupwise_verifiable.reading.grammar import read
from groupwise_verifiable.reading.items import matched
from groupwise_verifiable.reading.marks import peeled
from groupwise_verifiable.reading.measures import is_unit
from groupwise_verifiable.reading.node import Node, factors, integer, joined, key, spelling, terms
from groupwise_verifiable.reading.notation import tidy
from groupwise_verifiable.reading.question import Question
from groupwise_verifiable.reading.value import NoValueError, equivalent, rational, value

_SIDES = re.compile(r"(?:[^={}]|\{(?:[^{}]|\{[^{}]*\})*\})+")
_COMPOSED = re.compile(r"\b([fgh])\s*(?:\\circ|\u2218)|\b([fgh])\([fgh]\(")
_OF_SETS = re.compile(r"\\(?:cap|cup)(?![a-z])|\\(?:setminus|backslash)")
_UNITS = re.compile(
    r"(?<=[0-9])(?:\\.|[\s~])*\\(?:text|mathrm)\s*\{[^{}]*\}(?:\s*\^\s*\{?[23]\}?)?|\\?\$"
)
_UNREAD = re.compile(
    r"\\(?:i*int|cap|partial|star|circ|oplus|otimes|odot|sum|prod|lim|det|begin|frac\s*\{d)|[\]|]\s*[_^]|[vV]matrix|mod(?![a-z])|^\s*P\s*\("
    r"|[a-z]{3}\s*(?:\u00d7|\*|/|\\times|\\cdot)\s*[a-z]{3}"
)


def on_one_side(equation: Node) -> Node:
    """Returns the left side minus the right one."""
    left, right = equation.args
    zero = Node("number", text="0")
    if right == zero:
        return left
    return Node("neg", (right,)) if left == zero else Node("add", (left, Node("neg", (right,))))


def is_solved(node: Node) -> bool:
    """Returns whether an equation has a name, or a function of one, on its left side alone."""
    left, right = node.args[0], node.args[-1]
    if node.kind != "relation" or node.text.split()[0] != "=":
        return False
    return left.kind in ("call", "text") or (
        left.kind == "name" and not left.unknowns & right.unknowns
    )


def names_value(node: Node, question: Question) -> bool:
    """Returns whether the left side of an equation stands for its right one: a name, what the
    prompt asks for, or a quotient of names, as m/n = 7/9."""
    left, right = node.args[0], node.args[-1]
    if is_solved(node):
        return True
    if node.text != "=" or right.unknowns or not left.unknowns:
        return False
    quotient = left.kind == "div" and all(part.kind == "name" for part in left.args)
    return quotient or key(left) in question.formulas


def names_one(gold: Node, answer: Node) -> bool:
    """Returns whether two solved equations are of the same name: y and f(x) may be one."""
    if gold == answer or gold.kind == answer.kind:
        return gold == answer
    function = gold if gold.kind == "call" else answer
    is_plain = len(function.text.removesuffix("^-1")) == 1  # no f', no |x|
    is_plain = is_plain and function.args[0].kind == "name"
    return function.kind == "call" and is_plain


def of_variable(answer: Node, gold: Node) -> Node:
    """Returns f(n) = n + 1 in gold's variable: f(x) = x + 1; any other equation as it is."""
    functions = gold.args[0], answer.args[0]
    if any(len(node.args) != 1 or node.kind != "call" for node in functions):
        return answer
    new, old = (node.args[0] for node in functions)
    if {new.kind, old.kind} != {"name"} or new == old or new.text in answer.unknowns:
        return answer
    return _replaced(answer, old, new)


def _replaced(node: Node, old: Node, new: Node) -> Node:
    if node == old:
        return new
    return Node(node.kind, tuple(_replaced(part, old, new) for part in node.args), node.text)


def read_chain(text: str, question: Question) -> Node | None:
    """Reads a chain without the sides that the grammar does not read: an integral, a sum.

    Returns its last side if no other one can be read; None where it is no such chain, or a side
    has an operation on sets that the prompt lacks.
    """
    names, text = question.names, tidy(text)
    *before, last = _SIDES.findall(text) or [""]
    end = read(last, names)
    bare = (_UNITS.sub(" ", side) for side in before)  # 8 m \times 6 m
    before = [
        side if read(side, names) else plain for side, plain in zip(before, bare, strict=True)
    ]
    unread = [side for side in before if read(side, names) is None]
    if end is None or not all(_UNREAD.search(side) for side in unread):
        return None
    if not set(_OF_SETS.findall(" ".join(unread))) <= set(_OF_SETS.findall(question.text)):
        return None
    if re.search(r"\\n(?:ot|eq?)(?![a-z])", text):
        return None
    sides = [side for side in before if side not in unread]
    chain = read("=".join([*sides, last]), names)
    return chain if sides else end


def end_of_chain(node: Node) -> Node | None:
    """Returns the last side of a chain such as x = 2 + 3 = 5; None if its sides differ."""
    if node.kind != "relation":
        return node
    *before, last = node.args
    numbers = {rational(side) for side in before} - {None}
    named = all(side.kind in ("name", "label", "text", "call") for side in before) or numbers
    ends = set(node.text.split()) == {"="} and numbers <= {rational(last)} and named
    return last if ends else None


def ends_in(
    chain: Node, gold: Node, question: Question, same: Callable[[Node, Node], bool]
) -> bool:
    """Returns whether a chain such as x = 2 + 3 = 5 ends in gold, and no side has another value.

    same: whether an answer is gold.
    """
    *before, last = chain.args
    if len(before) == 1 and last.unknowns and last.kind == "name" and not gold.unknowns:
        before, last = [last], before[0]  # 5 = x
    if "approx" in chain.text:  # 1/3 = 0.333 is about the exact side
        count = chain.text.split().index("approx") + 1
        sides = [side for side in chain.args[:count] if not side.unknowns] or [last]
        if not all(_equals(side, sides[-1]) for side in sides):
            return False
        return same(gold, sides[-1]) or (same(gold, last) and _rounds_to(sides[-1], last))
    if not same(gold, last):
        return False
    if last.kind == "unit":
        before = [_without_units(side, question.names) for side in before]
    general = before[0].unknowns and not before[0].unknowns & question.names  # n(n-3)/2 = 8(5)/2
    return (
        _may_precede(before[0], last, question)
        or (bool(general) and any(not side.unknowns for side in before[1:]))
    ) and all(side.unknowns or _equals(side, last) for side in before[1:])


def _without_units(node: Node, names: frozenset[str]) -> Node:
    """A side of a chain without the letters that are units, of 8 m \\times 6.5 m."""
    args = tuple(_without_units(part, names) for part in node.args)
    if node.kind == "mul":
        rest = [
            part
            for part in args
            if part.kind != "name" or part.text in names or not is_unit(part.text)
        ]
        return joined("mul", rest) if rest else node
    return Node(node.kind, args, node.text)


def _rounds_to(exact: Node, decimal: Node) -> bool:
    """Whether a constant is a decimal to the digits that this has: pi is 3.14."""
    if decimal.kind != "number":
        return False
    half = Fraction(1, 2 * 10 ** len(decimal.text.partition(".")[2]))
    try:
        return bool(abs(float(value(exact)) - float(decimal.text)) <= half)
    except (NoValueError, TypeError):
        return False


def _may_precede(first: Node, whole: Node, question: Question) -> bool:  # noqa: PLR0911 - a case for each kind
    """Whether the first side of a chain names the last one, asks for it, or has its value."""
    side, last = peeled(first).node, peeled(whole).node
    if side.kind == "name":
        return _is_name_of(side.text, last, question)
    if side.kind == "call":
        return _is_value_of_function(side, last, question)
    if side.kind == "tuple" == last.kind:
        names = all(part.kind == "name" for part in side.args)
        return names or matched(side.args, last.args, _equals)
    if side.kind in ("text", "label", "tuple"):
        return True
    if side.kind == "pow" and side.args[0].kind == "name" and last.kind == "matrix":
        return _is_named_power(side, question)
    if _is_named_by_parts(side, last, question):
        return True
    signs = {sign for sign, _ in terms(side)}
    names = all(term.kind == "name" for _, term in terms(side)) and len(terms(side)) > 1
    if (names and signs == {1}) or key(side) in question.formulas:
        return True
    if side.unknowns:
        return equivalent(side, last)
    return _equals(side, last) or _equals(first, whole)


def _is_named_by_parts(  # noqa: PLR0911 - a case for each kind
    side: Node, last: Node, question: Question
) -> bool:
    """Whether a side names something by several letters: angle ABC, dy/dx, f \\circ g, AB."""
    parts = factors(side)
    letters = [part.text for part in parts]
    if any(text.startswith("angle") for text in letters):
        return bool(side.unknowns)
    if "circ" in letters and r"\circ" in question.text:
        composed = _COMPOSED.search(question.text)
        return composed is None or letters[0] == (composed[1] or composed[2])
    if len(parts) == 2 and all(part.kind == "name" for part in parts):
        if "".join(letters).isupper():  # a segment
            is_length = question.is_about("positive") or question.is_silent
            return last.kind not in ("tuple", "matrix") and is_length
        is_product = r"\cdot" in question.text or question.is_about("product")
        return last.kind in ("tuple", "matrix") or is_product
    if any(part.kind == "dots" for part in side.walk()):
        return True
    if side.kind == "union":
        return r"\cup" in question.text
    return question.is_about("derivative") and _is_differential(side)


def _is_name_of(name: str, last: Node, question: Question) -> bool:
    """Whether a name may be that of a value: the one that is asked for, of a vector, of a set."""
    if name.startswith("ray "):
        return name.removeprefix("ray ") in question.text
    spellings = {name, name.replace("_", "_{") + "}"}
    is_wanted = question.answer_name is None or question.answer_name in spellings
    is_region = last.kind == "set" or last.text in ("R", "empty")
    return name not in last.unknowns and (is_wanted or is_region)


def _is_value_of_function(  # noqa: C901, PLR0911 - a case for each kind
    call: Node, last: Node, question: Question
) -> bool:
    is_asked_for = _is_asked_for(call, question)
    if is_asked_for is not None:
        return is_asked_for
    names = all(part.kind == "name" for argument in call.args for part in factors(argument))
    if call.text == "abs" and names and question.is_about("size"):
        return True
    if call.text == "abs" and _is_named_by_parts(call.args[0], last, question):  # |AB|
        return True
    if call.text == "det" and not question.is_about("size"):
        return False
    if call.text in ("abs", "log", "floor", "ceil") or not call.args:
        return not call.unknowns and _equals(call, last)
    if not (call.unknowns or last.unknowns or _equals(call, last)):
        return False
    inverts = "inver" in question.text.lower()
    if inverts and call.text == "f":
        return False
    if "'" in call.text and not question.is_about("derivative"):
        return False
    named = re.sub("[{}]", "", question.text)
    if "^" in call.text and call.text[1:] not in named and not (inverts and "^-1" in call.text):
        return False
    if not last.unknowns and _is_defined(call, question):
        return False
    argument = spelling(call.args[0])
    if f"{call.text}'(" in question.text and f"{call.text}({argument})" not in question.text:
        return False
    composed = _COMPOSED.search(question.text)
    if composed is not None and last.unknowns:
        return call.text == (composed[1] or composed[2])
    return not last.unknowns or call.args[0].kind in ("name", "number", "tuple")


def _is_asked_for(call: Node, question: Question) -> bool | None:
    """Whether the prompt asks for a function, sin A, or for another one of the same, cos A; None
    where it does neither, or for f(x), which it may define."""
    own = key(call)
    if own in question.formulas:
        return True if len(call.text) > 1 and call.unknowns else None
    assert isinstance(own, tuple)
    calls = (each for each in question.formulas if isinstance(each, tuple) and each[0] == "call")
    return False if any(each[2:] == own[2:] for each in calls) else None  # of the same arguments


def _is_named_power(power: Node, question: Question) -> bool:
    """Whether the prompt asks for a power of a matrix: for A^2, or for an inverse."""
    exponent = integer(power.args[1])
    inverts = exponent == -1 and re.search("inver", question.text, re.IGNORECASE) is not None
    if "transpos" in question.text.lower() and power.args[1] == Node("name", text="T"):
        return True
    return inverts or re.search(rf"\^\s*\{{?{exponent}(?![0-9])", question.text) is not None


def _is_defined(call: Node, question: Question) -> bool:
    """Whether a function stands for all values of its variable: f(x) = 5 is no value of f.

    It may, where the prompt asks for f(x) and does not say what f(x) is.
    """
    if len(call.text) > 1 or [part.kind for part in call.args] != ["name"]:
        return False
    name = f"{call.text}({call.args[0].text})"
    prompt = question.text.replace(" ", "")
    return call.args[0].text.islower() and (name not in prompt or f"{name}=" in prompt)


def _is_differential(node: Node) -> bool:
    """Whether an expression begins with dy/dx or d/dx."""
    first = factors(node)[0]
    return first.kind == "div" and all(
        factors(side)[0] == Node("name", text="d") for side in first.args
    )


def _equals(one: Node, other: Node) -> bool:
    """Whether two constants are equal, computed or not; sides that have no value are."""
    try:
        value(one), value(other)
    except NoValueError:
        return True
    return equivalent(one, other, exact=False)
