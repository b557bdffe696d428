r"""Reads a tidied text as a `Node`, exactly as it is written: nothing is evaluated.

A recursive descent over the tokens, in time linear in their number:

    answer    = items, joined by commas, semicolons, "and", "or"
    item      = words? relation words? (\pmod{sum})?
    relation  = union (= | < | \le | > | \ge | \ne | \in | \approx | \equiv  union)*
    union     = ratio ((\cup | \setminus) ratio)*
    ratio     = sum (: sum)*
    sum       = sign? product (+ | - | \pm  product)*
    product   = factor ((\cdot | \times | * | / | \div)? factor)*
    factor    = sign? atom (^ group | ! | % | ^\circ | unit)*
"""

import re
from functools import lru_cache

from groupwise_verifiable.reading.expressions import Expressions
from groupwise_verifiable.reading.items import items, last_side
from groupwise_verifiable.reading.node import Node, number
from groupwise_verifiable.reading.notation import tidy
from groupwise_verifiable.reading.stream import END, UnreadableError
from groupwise_verifiable.reading.tokens import tokens
from groupwise_verifiable.reading.value import rational
from groupwise_verifiable.reading.words import LARGE, number_of

_DEEPEST = 30  # most brackets within brackets
_RELATIONS = {
    **{sign: sign for sign in "=<>"},
    **{rf"\{name}": name for name in ("le", "ge", "ne", "in", "approx", "equiv")},
}
_EXCEPT = re.compile(
    r"(?:all )?(?:the )?reals?(?: numbers?)?(?: x)?(?: except(?: for)?| excluding| other than| but)"
)
_EVERY = re.compile(
    r"(?:for )?(?:all|every|any)(?: reals?(?: numbers?| values?)?)?(?: of)?"
    r"(?: with| such that| where)?"
)
_SETS = {
    "empty": re.compile(
        r"none|(?:the )?empty set|no (?:real )?solutions?|no such [a-z ]{1,30}", re.IGNORECASE
    ),
    "R": re.compile(
        r"(?:the )?(?:set of )?(?:(?:all|every|any) )?(?:the )?reals?(?: numbers?| values?)?",
        re.IGNORECASE,
    ),
    "infinity": re.compile(
        r"(?:there are )?(?:an )?infinite(?:ly many)?(?: number of)?(?: (?:real )?[a-z]+s)?",
        re.IGNORECASE,
    ),
}
"""Words that name a set, or infinity."""
_CLOSING = {"(": ")]", "[": ")]", r"\{": (r"\}",), r"\langle": (r"\rangle",), "{": "}"}


@lru_cache(maxsize=4096)
def read(text: str, names: frozenset[str] = frozenset()) -> Node | None:
    """Returns the node of a text; None if the grammar does not read it.

    names: letters that are unknowns, so that the m of 2m is none of metres.
    """
    value = number_of(text)
    if value is not None:
        return number(value)
    try:
        return _Answers(tokens(tidy(text), names), names).answer()
    except UnreadableError:
        return None


class _Answers(Expressions):
    def answer(self) -> Node:
        if self.take_words("so", "thus", "hence", "therefore", "then"):
            self.take(",")
        node = self.items()
        if self.next is not END:
            raise UnreadableError
        return node

    def items(self) -> Node:
        """What commas, "and" and "or" join; the item itself if there is one."""
        items, signs = [self.modulo(self.item())], []
        while sign := self.separator():
            signs.append(sign)
            items.append(self.modulo(self.item()))
        if len(items) == 1:
            return items[0]
        return Node(
            "list", tuple(items), "and" if "and" in signs else "or" if "or" in signs else ","
        )

    def modulo(self, node: Node) -> Node:
        """The node, or with a modulus behind it a congruence."""
        if not self.take(r"\pmod") or not self.take("{"):
            return node
        congruence = Node("modulo", (node, self.sum()))
        if not self.take("}"):
            raise UnreadableError
        return congruence

    def separator(self) -> str | None:
        sign = self.take(",", ";", r"\land", r"\lor", r"\\")
        self.take(r"\\")  # of rows that end in commas
        word = self.take_words("and", "or", "as") if sign is None or sign == "," else None
        joined = word or {r"\land": "and", r"\lor": "or"}.get(sign or "", sign)
        return joined if self.next is not END else None

    def item(self) -> Node:  # noqa: PLR0911 - a case for each kind
        if self.next.kind != "word" or self.starts_currency():
            return self.relation()
        words = self.words()
        after_words = self.position
        if self.next is END or self.next.text in (",", ")", "}", r"\}"):
            return _counted_in(words) or Node("text", text=words)
        if self.next.text == "=" or self.take(":"):
            if self.take("=") and self.next is END:
                raise UnreadableError
            return Node("label", (self.relation(),), f"{words}:")
        value = number_of(words)
        if value is not None and self.take("("):  # seventy-two (72)
            inside = self.relation()
            if self.take(")") and rational(inside) == value:
                return self.marked(inside)
        self.position = after_words
        if self.take("(") and self.bracketed("(") and self.take("="):  # Area(ABC) = 5
            return Node("label", (self.relation(),), f"{words}:")
        self.position = after_words
        if _EXCEPT.fullmatch(words.lower()):
            points = [last_side(point) for point in items(self.items())]
            return Node("minus", (Node("name", text="R"), Node("set", tuple(points))))
        if _EVERY.fullmatch(words.lower()) and (region := self.relation()).kind == "relation":
            return region
        self.position = after_words
        return Node("label", (self.relation(),), words)

    def relation(self) -> Node:
        sides, signs = [self.union()], []
        while self.next.text in _RELATIONS and self.next.kind in ("sign", "command"):
            signs.append(_RELATIONS[self.next.text])
            self.position += 1
            if signs[-1] == "=" and self.next.text == "=":
                self.position += 1
            sides.append(self.union())
        return Node("relation", tuple(sides), " ".join(signs)) if signs else sides[0]

    def union(self) -> Node:
        if self.take(r"\approx"):
            return self.union()
        node = self.ratio()
        while sign := self.take(r"\cup", r"\setminus", r"\backslash", r"\cap"):
            if sign == r"\cap":
                raise UnreadableError
            node = Node("union" if sign == r"\cup" else "minus", (node, self.ratio()))
        return node

    def ratio(self) -> Node:
        parts = [self.sum()]
        while not self.in_set and (self.take(":") or (self.take_words("to"))):
            parts.append(self.sum())
        return self.marked(Node("ratio", tuple(parts))) if len(parts) > 1 else parts[0]

    def bracketed(self, opening: str) -> Node:
        if opening == r"\{" and self.take(r"\}"):
            return Node("name", text="empty")
        hundreds = self.next.text.split(",")  # (100,250) is a pair, 100,250 a number
        if opening in ("(", r"\{") and len(hundreds) > 1 and self.next.kind == "number":
            closing = self.after().text
            if closing in (")", r"\}"):
                self.position += 2
                parts = tuple(Node("number", text=part) for part in hundreds)
                return Node("tuple", parts, "()") if opening == "(" else Node("set", parts)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UnreadableError
        bars, in_set = self.bars, self.in_set
        builds = opening in (r"\{", "{") and self.next.kind == "name"
        self.in_set = builds and self.after().text in ("|", ":", r"\mid", r"\in")
        self.bars = int(self.in_set)
        node, end = self.inside(opening), self.take(*_CLOSING[opening])
        if end is None:
            raise UnreadableError
        self.depth, self.bars, self.in_set = self.depth - 1, bars, in_set
        return _collected(opening, node, end)

    def inside(self, opening: str) -> Node:
        node = self.items()
        if opening == "{" and (sign := self.take(r"\over", r"\choose")):
            parts = node, self.items()
            return Node("div", parts) if sign == r"\over" else Node("call", parts, "binom")
        if self.in_set and self.take("|", ":", r"\mid"):
            self.in_set, self.bars = False, 0
            return Node("builder", (node, self.items()))
        return node

    def matrix(self) -> Node:
        """`\\begin{pmatrix}a & b \\\\ c & d\\end{pmatrix}`, of any bracket."""
        self.environment()
        node = self.rows(r"\end")
        self.environment()
        return node

    def plain_matrix(self) -> Node:
        """`\\pmatrix{a & b \\cr c & d}`."""
        if not self.take("{"):
            raise UnreadableError
        return self.rows("}")

    def rows(self, closing: str) -> Node:
        rows, row = [], [self.relation()]
        while True:
            if self.take("&"):
                row.append(self.relation())
            elif self.take(r"\\"):
                rows.append(Node("row", tuple(row)))
                row = [] if self.next.text == closing else [self.relation()]
            else:
                break
        if not self.take(closing):
            raise UnreadableError
        rows += [Node("row", tuple(row))] if row else []
        return Node("matrix", tuple(rows))

    def environment(self) -> None:
        if not self.take("{"):
            raise UnreadableError
        name = ""
        while self.next.kind in ("word", "name"):
            name += self.next.text
            self.position += 1
        self.take("*")
        if not self.take("}") or not name.endswith(("matrix", "array")) or name[0] == "v":
            raise UnreadableError
        if name == "array" and self.take("{"):
            while self.next is not END and not self.take("}"):
                self.position += 1
        elif self.next.text == "[" and self.after().text in tuple("lcr") and self.take("["):
            self.position += 1
            self.take("]")


def _counted_in(words: str) -> Node | None:
    """The number that stands alone among words: fifteen seats, there are fifteen seats; the set
    that they name: no solution, all real numbers."""
    for name, pattern in _SETS.items():
        if pattern.fullmatch(words):
            return Node("name", text=name)
    value = number_of(words)
    if value is not None:
        return number(value)
    every = words.split()
    places = [n for n, word in enumerate(every) if number_of(word) is not None or word in LARGE]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return None
    value = number_of(" ".join(every[places[0] : places[-1] + 1]))
    if value is None:
        return None
    before, behind = " ".join(every[: places[0]]), " ".join(every[places[-1] + 1 :])
    node = Node("unit", (number(value),), behind) if behind else number(value)
    return Node("label", (node,), before) if before else node


def _collected(opening: str, node: Node, closing: str) -> Node:  # noqa: PLR0911 - a case for each kind
    if opening == "{":
        return node
    if opening == r"\{":
        if node.kind == "builder":
            return node
        return Node("set", node.args if node.kind == "list" else (node,))
    if node.kind == "list":
        brackets = "()" if opening == r"\langle" else opening + closing
        return Node("tuple", node.args, brackets)
    if opening == "(" and closing == ")":
        return node
    if node.kind == "matrix":
        return node
    if opening == "[" and closing == "]":
        return Node("tuple", (node,), "[]")
    raise UnreadableError
