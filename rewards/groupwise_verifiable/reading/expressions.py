r"""Reads expressions: sums, products, powers, functions, and the marks behind them.

sum       = sign? product (+ | - | \pm  product)*
product   = factor ((\cdot | \times | * | / | \div)? factor)*
factor    = sign? atom (^ group | ! | % | ^\circ | unit)*
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from groupwise_verifiable.reading.node import Node, joined, number, spelling
from groupwise_verifiable.reading.stream import END, UnreadableError
from groupwise_verifiable.reading.tokens import Token
from groupwise_verifiable.reading.units import Units

_TIMES = ("*", r"\cdot", r"\times")
MATRICES = (r"\matrix", r"\pmatrix", r"\bmatrix")
_TRANSPOSED = (Node("name", text="T"), Node("text", text="T"), Node("name", text="top"))
_STARTING = frozenset({
    "(", "[", "{", r"\frac", r"\sqrt", r"\binom", r"\langle", r"\begin", *MATRICES, r"\$", "$",
    "\u20ac", "\u00a3",
})  # fmt: skip
OPENING = ("(", "[", r"\{", r"\langle", "{")


class Expressions(Units, ABC):
    """The part of the grammar that reads one value."""

    @abstractmethod
    def bracketed(self, opening: str) -> Node:
        """Reads what follows an opening bracket, with the closing one."""

    @abstractmethod
    def matrix(self) -> Node:
        """Reads what follows `\begin`."""

    @abstractmethod
    def plain_matrix(self) -> Node:
        r"""Reads what follows `\pmatrix`."""

    def sum(self) -> Node:
        """Reads a sum, or a term of one."""
        sign = self.take("+", "-", r"\pm")
        first = self.product()
        if sign == "-":
            first = _negative(first)
        elif sign == r"\pm":
            first = Node("pm", (first,))
        parts = [first]
        while sign := self.take("+", "-", r"\pm"):
            right = self.product()
            if sign == r"\pm":
                parts = [Node("pm", (joined("add", parts), right))]
            else:
                parts.append(right if sign == "+" else Node("neg", (right,)))
        return joined("add", parts)

    def product(self) -> Node:
        parts = [self.factor()]
        while True:
            if self.take(*_TIMES):
                parts.append(self.factor())
            elif self.take("/", r"\div"):
                parts = [Node("div", (joined("mul", parts), self.factor()))]
            elif self.starts_factor():
                parts += self.beside(parts.pop())
            else:
                return joined("mul", parts)

    def beside(self, node: Node) -> list[Node]:
        """A factor and the one that follows without a sign; 1 1/2 and 1 \\frac12 are numbers."""
        if node.kind == "number" and "." not in node.text:
            if self.next == Token("command", r"\frac"):
                right = self.atom()
                if right.kind == "div" and all(part.kind == "number" for part in right.args):
                    return [self.marked(Node("mixed", (node, *right.args)))]
                return [node, self.marked(right)]
            if self.next.kind == "number":
                above = self.factor()
                if self.take("/") and self.next.kind == "number":
                    return [self.marked(Node("mixed", (node, above, self.atom())))]
                raise UnreadableError
        if self.next.kind == "number" and node.kind != "call" and node.text != "i":
            raise UnreadableError  # two numbers side by side
        return [node, self.factor()]

    def starts_factor(self) -> bool:
        token = self.next
        if token.kind in ("number", "based", "repeating", "name", "function"):
            return True
        if token.text == "|":
            return self.bars == 0 and self.after() is not END
        return token.text in _STARTING and not (token.text == "[" and self.depth == 0)

    def factor(self) -> Node:
        if self.take("-"):
            return Node("neg", (self.factor(),))
        if self.take("+"):
            return self.factor()
        if currency := self.currency():
            return self.marked(Node("money", (self.factor(),), currency))
        return self.marked(self.atom())

    def marked(self, node: Node) -> Node:
        """The node with what stands behind it: exponents, marks and units."""
        powers = False
        while True:
            token, following = self.next, self.after()
            if token.text == "^" and following.text in (r"\circ", "circ"):
                self.position += 2
                node = Node("degrees", (node,))
            elif token.text == "^":
                if powers:
                    raise UnreadableError  # x^2^3
                self.position, powers = self.position + 1, True
                node = self.power(node)
            elif token.text == "!":
                self.position += 1
                node = Node("call", (node,), "factorial")
            elif token.text in ("%", r"\%"):
                self.position += 1
                node = Node("percent", (node,))
            elif token.text in (r"\$", "$", "¢", "€", "£", "¥") and not self.starts_number(1):
                self.position += 1
                node = Node("unit", (node,), token.text.lstrip("\\"))
            elif token.kind == "exponent":
                self.position += 1
                power = Node("pow", (number(10), _integer(token.text)))
                node = Node("mul", (node, power))
            elif (united := self.unit(node)) is not None:
                node = united
            else:
                return node

    def starts_number(self, count: int) -> bool:
        return self.after(count).kind == "number"

    def power(self, base: Node) -> Node:
        if self.take("'"):
            raise UnreadableError
        sign = self.take("-")
        if self.next.kind == "name" and self.after().text == "(":  # e^x(x-1)
            exponent = Node("name", text=self.next.text)
            self.position += 1
        else:
            exponent = self.group()
        if base.kind == "tuple" and exponent in _TRANSPOSED:
            return Node("tuple", base.args, "()")
        if base.kind == "matrix" and len(base.args) == 1 and exponent in _TRANSPOSED:
            return Node("matrix", tuple(Node("row", (part,)) for part in base.args[0].args))
        return Node("pow", (base, Node("neg", (exponent,)) if sign else exponent))

    def atom(self) -> Node:
        token = self.next
        self.position += 1
        if token.kind == "number":
            return Node("number", text=token.text.replace(",", ""))
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
            **dict.fromkeys(MATRICES, self.plain_matrix),
            r"\ldots": lambda: Node("dots"),
            r"\lfloor": lambda: self.between(r"\rfloor", "floor"),
            r"\lceil": lambda: self.between(r"\rceil", "ceil"),
            r"\overline": lambda: Node("call", (self.group(),), "overline"),
            "|": self.absolute,
        }
        if token.text in readers and token.kind in ("command", "sign"):
            return readers[token.text]()
        if token.text in OPENING and token.kind in ("command", "sign"):
            return self.bracketed(token.text)
        raise UnreadableError

    def name(self, text: str) -> Node:
        """A name with its index, applied to what stands in brackets behind it."""
        if text in ("angle", "triangle", "ray", "Delta") and self.next.kind == "name":
            letters = ""
            while self.next.kind == "name":
                letters += self.next.text
                self.position += 1
            return Node("name", text=f"{text} {letters}")
        if self.take("_"):
            text += "_" + self.index()
        if self.take("'"):
            text += "'"
        node = Node("name", text=text)
        if text in ("f", "g", "h") and self.next.text == "^":
            self.position += 1
            node = self.power(node)
        return self.applied(text, node) if self.take("(") else node

    def index(self) -> str:
        start, braced = self.position, self.take("{")
        if self.next.kind == "function":  # A_{\\max}
            self.position += 1
            word = self.stream[self.position - 1].text
            if not braced or self.take("}"):
                return word
        self.position = start
        return spelling(self.group())

    def applied(self, text: str, node: Node) -> Node:
        """f(2) before an equals sign, P(X = 2), the point F(1, 0); else a product."""
        inside = self.bracketed("(")
        if node.kind == "pow":
            text = f"{text}^{spelling(node.args[1])}"
        compared = self.next.text in ("=", r"\le", r"\ge", r"\in", "<", ">")
        if (
            self.next.text == "="
            or (compared and text in ("f", "g", "h"))
            or (inside.kind == "relation" and text in ("P", "p", "F", "f"))
        ):
            return Node("call", (inside,), text)
        if text[0].isupper() and inside.kind == "tuple":
            return Node("label", (inside,), f"{text}:")
        return Node("mul", (node, self.marked(inside)))

    def call(self, text: str) -> Node:
        if self.next.text == "=":  # \max = 5
            return Node("text", text=text)
        base: tuple[Node, ...] = ()
        if text in ("log", "lg") and self.take("_"):
            base = (self.group(),)
        power = self.group() if self.take("^") else None
        if text in ("ln", "lg"):
            base = (Node("name", text="e"),) if text == "ln" else (number(10),)
        argument = self.bracketed("(") if self.take("(", "[") else self.argument()
        name = {"ln": "log", "lg": "log"}.get(text, text)
        if power is not None and spelling(power) == "-1" and name in ("sin", "cos", "tan"):
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
        if token.kind == "number" and len(token.text) > 1 and self.previous(r"\frac", r"\binom"):
            digit, rest = token.text[0], token.text[1:]
            self.stream[self.position] = Token("number", rest)
            return Node("number", text=digit)
        return self.atom_or_command()

    def previous(self, *commands: str) -> bool:
        return self.position > 0 and self.stream[self.position - 1].text in commands

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


def _negative(node: Node) -> Node:
    return Node("neg", (node,))


def _integer(text: str) -> Node:
    return _negative(number(int(text[1:]))) if text.startswith("-") else number(int(text))
