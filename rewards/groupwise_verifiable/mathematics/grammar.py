r"""Reads a tidied text as a `Node`, exactly as it is written: nothing is evaluated.

A recursive descent over the tokens, in time linear in their number:

    answer    = items, joined by commas, semicolons, "and", "or"
    item      = words? relation words?
    relation  = union (= | < | \le | > | \ge | \ne | \in | \approx | \equiv  union)*
    union     = ratio ((\cup | \setminus) ratio)*
    ratio     = sum (: sum)*
    sum       = sign? product (+ | - | \pm  product)*
    product   = factor ((\cdot | \times | * | / | \div)? factor)*
    factor    = sign? atom (^ group | ! | % | ^\circ | unit)*
"""

from collections.abc import Callable
from functools import lru_cache

from groupwise_verifiable.mathematics.node import Node, number
from groupwise_verifiable.mathematics.notation import tidy
from groupwise_verifiable.mathematics.tokens import Token, tokens
from groupwise_verifiable.mathematics.words import LARGE, is_unit, number_of

_DEEPEST = 30  # most brackets within brackets
_END = Token("end", "")
_RELATIONS = {
    **{sign: sign for sign in "=<>"},
    **{rf"\{name}": name for name in ("le", "ge", "ne", "in", "approx", "equiv")},
}
_CLOSING = {"(": ")]", "[": ")]", r"\{": (r"\}",), r"\langle": (r"\rangle",), "{": "}"}
_TIMES = ("*", r"\cdot", r"\times")
_UNIT_LETTERS = frozenset("mgshLldKNJWVAC")


class UnreadableError(ValueError):
    """A text that the grammar does not read."""


@lru_cache(maxsize=4096)
def read(text: str, names: frozenset[str] = frozenset()) -> Node | None:
    """Returns the node of a text; None if the grammar does not read it.

    names: letters that are unknowns, so that the m of 2m is none of metres.
    """
    value = number_of(text)
    if value is not None:
        return number(value)
    try:
        return _Parser(tokens(tidy(text), names), names).answer()
    except UnreadableError:
        return None


class _Parser:
    def __init__(self, stream: list[Token], names: frozenset[str]) -> None:
        self.stream, self.names = stream, names
        self.position = self.depth = self.bars = 0
        self.in_set = False  # where a colon or a bar separates

    # ---- tokens

    @property
    def next(self) -> Token:
        return self.stream[self.position] if self.position < len(self.stream) else _END

    def after(self, count: int = 1) -> Token:
        place = self.position + count
        return self.stream[place] if place < len(self.stream) else _END

    def take(self, *spellings: str) -> str | None:
        """The next token's text if it is a sign or command among these, and steps over it."""
        token = self.next
        if token.kind in ("sign", "command") and token.text in spellings:
            self.position += 1
            return token.text
        return None

    def take_words(self, *words: str) -> str | None:
        token = self.next
        if token.kind == "word" and token.text.lower() in words:
            self.position += 1
            return token.text.lower()
        return None

    # ---- collections

    def answer(self) -> Node:
        node = self.items()
        if self.next is not _END:
            raise UnreadableError
        return node

    def items(self) -> Node:
        """What commas, "and" and "or" join; the item itself if there is one."""
        items, signs = [self.item()], []
        while sign := self.separator():
            signs.append(sign)
            items.append(self.item())
        if len(items) == 1:
            return items[0]
        return Node(
            "list", tuple(items), "and" if "and" in signs else "or" if "or" in signs else ","
        )

    def separator(self) -> str | None:
        sign = self.take(",", ";", r"\land", r"\lor", r"\\")
        word = self.take_words("and", "or", "as") if sign is None or sign == "," else None
        joined = word or {r"\land": "and", r"\lor": "or"}.get(sign or "", sign)
        return joined if self.next is not _END else None

    def item(self) -> Node:
        if self.next.kind != "word":
            return self.relation()
        start, words = self.position, self.words()
        if self.next is _END or self.next.text in (",", ")", "}", r"\}"):
            value = number_of(words)
            return Node("text", text=words) if value is None else number(value)
        if self.next.text == "=" or self.take(":"):
            if self.take("=") and self.next is _END:
                raise UnreadableError
            return Node("label", (self.relation(),), words)
        value = number_of(words)
        if value is not None and self.take("("):  # seventy-two (72)
            inside = self.relation()
            if self.take(")") and inside == number(value):
                return self.marked(inside)
        self.position = start
        return Node("label", (self.relation_after(words),), words)

    def relation_after(self, words: str) -> Node:
        self.words()
        return self.relation()

    def words(self) -> str:
        """The words that come next, also joined by hyphens."""
        found: list[str] = []
        while self.next.kind == "word" or (
            self.next.text in ("-", "'") and found and self.after().kind == "word"
        ):
            if self.next.kind == "word" and found and self.next.text.lower() in ("and", "or"):
                break
            found.append(self.next.text)
            self.position += 1
        return " ".join(found).replace(" - ", "-").replace(" ' ", "'")

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

    # ---- expressions

    def sum(self) -> Node:
        sign = self.take("+", "-", r"\pm")
        first = self.product()
        if sign == "-":
            first = _negative(first)
        elif sign == r"\pm":
            first = Node("pm", (first,))
        node = first
        while sign := self.take("+", "-", r"\pm"):
            right = self.product()
            if sign == r"\pm":
                node = Node("pm", (node, right))
            else:
                node = Node("add", (node, right if sign == "+" else Node("neg", (right,))))
        return node

    def product(self) -> Node:
        node = self.factor()
        while True:
            if self.take(*_TIMES):
                node = Node("mul", (node, self.factor()))
            elif self.take("/", r"\div"):
                node = Node("div", (node, self.factor()))
            elif self.starts_factor():
                node = self.beside(node)
            else:
                return node

    def beside(self, node: Node) -> Node:
        """A node and the factor that follows without a sign; 1 1/2 and 1 \\frac12 are numbers."""
        if node.kind == "number" and "." not in node.text:
            if self.next == Token("command", r"\frac"):
                right = self.atom()
                if right.kind == "div" and all(part.kind == "number" for part in right.args):
                    return self.marked(Node("mixed", (node, *right.args)))
                return Node("mul", (node, self.marked(right)))
            if self.next.kind == "number":
                above = self.factor()
                if self.take("/") and self.next.kind == "number":
                    return self.marked(Node("mixed", (node, above, self.atom())))
                raise UnreadableError
        if self.next.kind == "number" and node.kind != "call":
            raise UnreadableError  # two numbers side by side
        return Node("mul", (node, self.factor()))

    def starts_factor(self) -> bool:
        token = self.next
        if token.kind in ("number", "based", "repeating", "name", "function"):
            return True
        if token.text == "|":
            return self.bars == 0 and self.after() is not _END
        starts = ("(", "[", "{", r"\frac", r"\sqrt", r"\binom", r"\langle", r"\begin", r"\$", "$")
        return token.text in starts and not (token.text == "[" and self.depth == 0)

    def factor(self) -> Node:
        if self.take("-"):
            return Node("neg", (self.factor(),))
        if self.take("+"):
            return self.factor()
        if self.take(r"\$", "$"):
            return self.marked(Node("money", (self.factor(),)))
        return self.marked(self.atom())

    def marked(self, node: Node) -> Node:
        """The node with what stands behind it: exponents, marks and units."""
        while True:
            token, following = self.next, self.after()
            if token.text == "^" and following.text in (r"\circ", "circ"):
                self.position += 2
                node = Node("degrees", (node,))
            elif token.text == "^":
                self.position += 1
                node = self.power(node)
            elif token.text == "!":
                self.position += 1
                node = Node("call", (node,), "factorial")
            elif token.text in ("%", r"\%"):
                self.position += 1
                node = Node("percent", (node,))
            elif token.text in (r"\$", "$", "¢") and not self.starts_number(1):
                self.position += 1
                node = Node("unit", (node,), token.text.lstrip("\\"))
            elif token.kind == "exponent":
                self.position += 1
                power = Node("pow", (number(10), _integer(token.text)))
                node = Node("mul", (node, power))
            elif token.kind == "word" and not self.joins():
                node = self.unit(node)
            elif self.is_unit_letter(node):
                node = self.unit(node)
            else:
                return node

    def joins(self) -> bool:
        """Whether the next word joins two expressions: and, or, the "to" of a ratio."""
        word = self.next.text.lower()
        return word in ("and", "or") or (word == "to" and self.after().kind == "number")

    def starts_number(self, count: int) -> bool:
        return self.after(count).kind == "number"

    def power(self, base: Node) -> Node:
        if self.take("'"):
            raise UnreadableError
        sign = self.take("-")
        exponent = self.group()
        return Node("pow", (base, Node("neg", (exponent,)) if sign else exponent))

    def is_unit_letter(self, node: Node) -> bool:
        """Whether a letter after a number is a unit: the m of 5 m, unless m is an unknown."""
        token = self.next
        if token.kind != "name" or token.text not in _UNIT_LETTERS or token.text in self.names:
            return False
        ends = ("^", "/", ",", ")", "}")
        following = self.after()
        return _is_quantity(node) and (following in (_END,) or following.text in ends)

    def unit(self, node: Node) -> Node:
        """Words after an expression: a unit, large numbers, the end of a sentence."""
        words: list[str] = []
        while True:
            token = self.next
            if token.kind == "word" and token.text.lower() in ("and", "or"):
                break
            if token.kind == "word" or (not words and token.kind == "name"):
                words.append(token.text)
            elif words and token.text == "^":
                self.position += 1
                words.append("^" + _plain(self.group()))
                continue
            elif (
                words
                and token.text in ("/", "-", "'", "*", r"\cdot")
                and (self.after().kind in ("word", "name"))
            ):
                self.position += 1
                words += [token.text, self.next.text]
            elif words and token.text in (".",):
                pass
            else:
                break
            self.position += 1
        return _united(node, words)

    def atom(self) -> Node:
        token = self.next
        self.position += 1
        if token.kind == "number":
            return Node("number", text=token.text)
        if token.kind in ("based", "repeating"):
            return Node(token.kind, text=token.text)
        if token.kind == "name":
            return self.name(token.text)
        if token.kind == "function":
            return self.call(token.text)
        readers: dict[str, Callable[[], Node]] = {
            r"\frac": self.fraction,
            r"\sqrt": self.root,
            r"\binom": lambda: Node("call", (self.group(), self.group()), "binom"),
            r"\begin": self.matrix,
            r"\ldots": lambda: Node("dots"),
            r"\lfloor": lambda: self.between(r"\rfloor", "floor"),
            r"\lceil": lambda: self.between(r"\rceil", "ceil"),
            r"\overline": lambda: Node("call", (self.group(),), "overline"),
            "|": self.absolute,
        }
        if token.text in readers and token.kind in ("command", "sign"):
            return readers[token.text]()
        if token.text in _CLOSING and token.kind in ("command", "sign"):
            return self.bracketed(token.text)
        raise UnreadableError

    def name(self, text: str) -> Node:
        if text in ("angle", "triangle", "Delta") and self.next.kind == "name":
            letters = ""
            while self.next.kind == "name":
                letters += self.next.text
                self.position += 1
            return Node("name", text=f"{text} {letters}")
        if self.take("_"):
            text += "_" + _plain(self.group())
        if self.take("'"):
            text += "'"
        if text[0] in "fghFPpS" and self.next.text == "(":
            place = self.position
            self.position += 1
            inside = self.bracketed("(")
            if self.next.text == "=" or inside.kind == "relation":
                return Node("call", (inside,), text)
            self.position = place
        return Node("name", text=text)

    def call(self, text: str) -> Node:
        base: tuple[Node, ...] = ()
        if text in ("log", "lg") and self.take("_"):
            base = (self.group(),)
        power = self.group() if self.take("^") else None
        if text in ("ln", "lg"):
            base = (Node("name", text="e"),) if text == "ln" else (number(10),)
        if self.take("(", "["):
            argument = self.bracketed("(")
        else:
            argument = self.argument()
        name = {"ln": "log", "lg": "log"}.get(text, text)
        if power is not None and _plain(power) == "-1" and name in ("sin", "cos", "tan"):
            return Node("call", (argument,), f"arc{name}")
        arguments = argument.args if argument.kind == "tuple" else (argument,)
        node = Node("call", (*arguments, *base), name)
        return node if power is None else Node("pow", (node, power))

    def argument(self) -> Node:
        """The argument of a function without brackets: `\\sin 2x`, `\\ln 3`."""
        sign = self.take("-")
        node = self.factor()
        while self.next.kind in ("name", "number") or self.next.text in (r"\frac", r"\sqrt"):
            if node.kind in ("degrees", "unit"):
                break
            node = Node("mul", (node, self.factor()))
        if self.next.text == "/" and self.after().kind == "number":  # \sin \pi/3
            self.position += 1
            node = Node("div", (node, self.factor()))
        return Node("neg", (node,)) if sign else node

    def group(self) -> Node:
        """An argument of a command, or an exponent: one token or what is in braces."""
        if self.take("{"):
            return self.bracketed("{")
        if self.take("("):
            return self.bracketed("(")
        token = self.next
        if token.kind == "number" and len(token.text) > 1 and self.previous(r"\frac"):
            digit, rest = token.text[0], token.text[1:]
            self.stream[self.position] = Token("number", rest)
            return Node("number", text=digit)
        return self.atom_or_command()

    def previous(self, command: str) -> bool:
        return self.position > 0 and self.stream[self.position - 1].text == command

    def atom_or_command(self) -> Node:
        if self.next.kind == "word":
            words = self.words()
            return Node("text", text=words)
        return self.atom()

    def fraction(self) -> Node:
        above = self.group()
        return Node("div", (above, self.group()))

    def root(self) -> Node:
        index = number(2)
        if self.take("["):
            index = self.sum()
            if not self.take("]"):
                raise UnreadableError
        return Node("root", (self.group(), index))

    def absolute(self) -> Node:
        self.bars += 1
        node = self.sum()
        self.bars -= 1
        if not self.take("|"):
            raise UnreadableError
        return Node("call", (node,), "abs")

    def between(self, closing: str, name: str) -> Node:
        node = self.sum()
        if not self.take(closing):
            raise UnreadableError
        return Node("call", (node,), name)

    # ---- brackets

    def bracketed(self, opening: str) -> Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UnreadableError
        bars, in_set = self.bars, self.in_set
        builds = opening in (r"\{", "{") and self.next.kind == "name"
        self.in_set = builds and self.after().text in ("|", ":", r"\mid", r"\in")
        self.bars = int(self.in_set)
        if opening == r"\{" and self.take(r"\}"):
            node, closing = Node("name", text="empty"), r"\}"
        else:
            node = self.inside(opening)
            closing = self.take(*_CLOSING[opening]) or ""
            if not closing:
                raise UnreadableError
        self.depth, self.bars, self.in_set = self.depth - 1, bars, in_set
        return _collected(opening, node, closing)

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
        rows, row = [], [self.relation()]
        while True:
            if self.take("&"):
                row.append(self.relation())
            elif self.take(r"\\"):
                rows.append(Node("row", tuple(row)))
                if self.next.text == r"\end":
                    row = []
                    break
                row = [self.relation()]
            else:
                break
        if not self.take(r"\end"):
            raise UnreadableError
        self.environment()
        rows += [Node("row", tuple(row))] if row else []
        return Node("matrix", tuple(rows))

    def environment(self) -> None:
        if not self.take("{"):
            raise UnreadableError
        name = ""
        while self.next.kind in ("word", "name"):
            name += self.next.text
            self.position += 1
        if not self.take("}") or not name.endswith(("matrix", "array")) or name[0] == "v":
            raise UnreadableError
        if name == "array" and self.take("{"):
            while self.next is not _END and not self.take("}"):
                self.position += 1


def _collected(opening: str, node: Node, closing: str) -> Node:
    if opening == "{":
        return node
    if opening == r"\{":
        if node.kind == "builder" or node == Node("name", text="empty"):
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


def _negative(node: Node) -> Node:
    return Node("neg", (node,))


def _integer(text: str) -> Node:
    return _negative(number(int(text[1:]))) if text.startswith("-") else number(int(text))


def _is_quantity(node: Node) -> bool:
    if node.kind in ("neg", "money"):
        return _is_quantity(node.args[0])
    return node.kind in ("number", "mixed", "div", "repeating")


def _plain(node: Node) -> str:
    return node.text or "".join(("-" if node.kind == "neg" else "") + _plain(x) for x in node.args)


def _united(node: Node, words: list[str]) -> Node:
    text = " ".join(words)
    first = words[0].lower().removesuffix("s") if words else ""
    if first in LARGE or words[:1] == ["dozen"]:
        scaled = Node("unit", (node,), first)
        rest = words[1:]
        return _united(scaled, rest) if rest else scaled
    if words and words[0].lower() in ("percent", "pct", "percentage"):
        marked = Node("percent", (node,))
        return _united(marked, words[1:]) if words[1:] else marked
    if words and words[0].lower() in ("degree", "degrees") and len(words) == 1:
        return Node("degrees", (node,))
    return Node("unit", (node,), text)


__all__ = ["UnreadableError", "is_unit", "read"]
