"""Tokens of mathematics: numbers, names, commands, words and signs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from groupwise_verifiable.reading.measures import is_unit
from groupwise_verifiable.reading.words import number_of

FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh",
    "tanh", "ln", "log", "lg", "exp", "max", "min", "gcd", "lcm", "cis", "det",
})  # fmt: skip
_GREEK = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta",
    "vartheta", "iota", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi",
    "varphi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Sigma", "Phi", "Psi",
    "Omega", "ell", "angle", "triangle", "ray", "circ", "prime",
})  # fmt: skip
_NAMED = {
    r"\pi": "pi",
    r"\infty": "infinity",
    r"\infinity": "infinity",
    r"\mathbbR": "R",
    r"\emptyset": "empty",
}
_TEXT = frozenset({
    "text", "textbf", "textrm", "textup", "textnormal", "textit", "textsf", "texttt", "textsl",
    "textsc", "emph", "mathrm", "operatorname", "mbox", "hbox", "rm",
})  # fmt: skip
_ALPHABETS = frozenset({"mathbf", "mathit", "mathsf", "mathtt", "bf", "it", "sf", "tt"})
"""Alphabets of mathematics, in which words of several letters are words."""
_SHORT_WORDS = frozenset({
    "or", "and", "is", "no", "yes", "to", "if", "of", "in", "per", "mod", "not", "odd", "all",
    "any", "the", "are", "for", "day", "men", "man", "its", "it", "nan",
})  # fmt: skip
_CAPITALS = {"LCM": "lcm", "GCD": "gcd", "GCF": "gcd", "HCF": "gcd"}
_PLAIN = {"pi": "pi", "infinity": "infinity", "inf": "infinity", "theta": "theta"}
_TOKEN = re.compile(
    r"(?P<periodic>[0-9]{0,50}\.[0-9]{2,50}\s*\\ldots)"
    r"|(?P<based>(?:[0-9][0-9A-F]*|[A-F][0-9A-F]*(?=\s*_\s*\{\s*1[1-6]\s*\}))"
    r"\s*_\s*(?:[0-9]|\{\s*[0-9]{1,3}\s*\}))"
    r"|(?P<repeating>[0-9]{0,50}\.[0-9]{0,50}(?:\\(?:overline|bar|dot)\s*(?:\{[0-9]{1,50}\}|[0-9])"
    r"|\([0-9]{1,50}\)))"
    r"|(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+|\.(?![0-9.]))?"
    r"|\.[0-9]+)(?P<exponent>[eE][-+]?[0-9]{1,3}(?![0-9a-zA-Z]))?"
    r"|(?P<command>\\(?:[a-zA-Z]+|.))"
    r"|(?P<letters>[^\W\d_]+)"
    r"|(?P<sign>\S)",
    re.DOTALL,
)
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s.,-]+[^\W\d_]+)*\.?")
_ARTICLE = re.compile(r"\s+[a-z]{2,}")  # behind "a" between two words
_COUNTED = re.compile(
    r"(?:[0-9})]|[A-Za-z]{2,}(?:\s+a)?)\s+\Z"
)  # before a word that says what is counted


@dataclass(frozen=True)
class Token:
    """kind: number, based, exponent, name, function, word, command, sign; text: its spelling."""

    kind: str
    text: str


def tokens(text: str, names: frozenset[str] = frozenset()) -> list[Token]:
    """Returns the tokens of a tidied text; names: letters that are unknowns and no units."""
    return list(_tokens(text, names, in_words=False))


def _tokens(text: str, names: frozenset[str], *, in_words: bool) -> Iterator[Token]:
    position = 0
    while match := _TOKEN.search(text, position):
        position = match.end()
        kind, spelling = match.lastgroup or "", match.group()
        if match["number"] is not None:
            yield Token("number", match["number"].rstrip("."))
            if match["exponent"]:
                yield Token("exponent", match["exponent"][1:].replace("+", ""))
        elif kind == "based":
            digits, base = re.split(r"\s*_\s*", spelling)
            yield Token("based", f"{digits}_{base.strip('{} ')}")
        elif kind == "periodic":
            yield from _periodic(spelling)
        elif kind == "repeating":
            yield Token(kind, re.sub(r"\\[a-z]+\s*\{?([0-9]+)\}?", r"(\1)", spelling))
        elif kind == "command" and spelling[1:] in (_TEXT | _ALPHABETS):
            content, position = _group(text, position)
            yield from _texts(spelling[1:], content, names)
        elif kind == "command":
            yield _command(spelling)
        elif kind == "letters":
            counted = _COUNTED.search(text, max(0, match.start() - 9), match.start()) is not None
            counted = counted and (spelling != "a" or _ARTICLE.match(text, match.end()) is not None)
            yield from _letters(spelling, names, in_words=in_words, counted=counted)
        else:
            yield Token("sign", spelling)


def _periodic(spelling: str) -> Iterator[Token]:
    """0.1666... as 0.1(6): the shortest period that most of the last decimals repeat."""
    digits = spelling.partition("\\")[0].strip()
    whole, _, decimals = digits.partition(".")
    lengths = range(1, len(decimals) // 2 + 1)
    period = max(lengths, key=lambda length: (_repeated(decimals, length), -length))
    if not _repeated(decimals, period):
        yield from (Token("number", digits), Token("command", r"\ldots"))
        return
    before = decimals[: len(decimals) - _repeated(decimals, period)]
    yield Token("repeating", f"{whole}.{before}({decimals[-period:]})")


def _repeated(decimals: str, length: int) -> int:
    """How many of the last decimals are repetitions of a period of this length."""
    period, count = decimals[-length:], 0
    while decimals.endswith(period * (count + 1)):
        count += 1
    return count * length if count > 1 else 0


def _command(spelling: str) -> Token:
    if spelling in _NAMED:
        return Token("name", _NAMED[spelling])
    if spelling[1:] in FUNCTIONS:
        return Token("function", spelling[1:])
    if spelling[1:] in _GREEK:
        return Token("name", spelling[1:])
    return Token("command", spelling)


def _texts(command: str, content: str, names: frozenset[str]) -> Iterator[Token]:
    """The tokens of `\\text{...}`: words, also of one letter, unless it is a name in roman type."""
    plain = content.strip()
    if "=" in plain:
        yield from _tokens(plain, names, in_words=False)
        return
    if command in _ALPHABETS and (set(plain) <= names or not _WORDS.fullmatch(plain)):
        yield from _tokens(plain, names, in_words=False)
        return
    capital = len(plain) == 1 and plain.isupper()
    if capital or (command not in ("text", "mbox") and (len(plain) == 1 or plain in FUNCTIONS)):
        yield from _tokens(plain, names, in_words=False)
    else:
        yield from _tokens(content, names, in_words=True)


def _letters(
    letters: str, names: frozenset[str], *, in_words: bool, counted: bool
) -> Iterator[Token]:
    if letters == "a" and counted:
        yield Token("word", letters)
    elif letters in ("sqrt", "frac") and not in_words:
        yield Token("command", f"\\{letters}")
    elif letters in _CAPITALS:
        yield Token("function", _CAPITALS[letters])
    elif letters in FUNCTIONS and not (in_words and len(letters) < 3):
        yield Token("function", letters)
    elif letters in _PLAIN:
        yield Token("name", _PLAIN[letters])
    elif in_words and len(letters) == 1 and letters.isupper():
        yield Token("name", letters)
    elif in_words or not _is_product(letters, names, counted=counted):
        yield Token("word", letters)
    else:
        yield from (Token("name", letter) for letter in letters)


def _is_product(letters: str, names: frozenset[str], *, counted: bool) -> bool:
    """Whether letters without blanks are unknowns side by side, and no word."""
    if not letters.isascii():
        return False
    if len(letters) == 1 or set(letters) <= names:
        return True
    lower = letters.lower()
    if counted or lower in _SHORT_WORDS or is_unit(letters) or number_of(lower) is not None:
        return False
    return len(letters) <= 4 and (letters.isupper() or (letters.islower() and len(letters) <= 3))


def _group(text: str, position: int) -> tuple[str, int]:
    """The content of the braces that begin at a position, and where they end."""
    while position < len(text) and text[position] == " ":
        position += 1
    if position >= len(text) or text[position] != "{":
        match = re.compile(r"[A-Za-z]+|.?", re.DOTALL).match(text, position)
        return (match.group(), match.end()) if match else ("", position)
    depth = 0
    for index in range(position, len(text)):
        if text[index] in "{}" and text[index - 1] != "\\":
            depth += 1 if text[index] == "{" else -1
            if depth == 0:
                return text[position + 1 : index], index + 1
    return text[position + 1 :], len(text)
