"""Finds mathematics in texts: the answer of a completion, a gold answer, a prompt's expressions.

A completion is an adversary's text: every pattern here takes linear time, and what is searched for
an answer without a box is the end of the text.
"""

import re

from groupwise_verifiable.text import outside_thinking

# Between boxes or formulas that are one answer together, as in "\boxed{2} and \boxed{3}".
_AND = r"(?:,|;|,?\s*\b(?:and|or)\b)"
_BETWEEN_BOXES = re.compile(rf"[\s$]*{_AND}[\s$]*")
_BETWEEN_FORMULAS = re.compile(rf"\s*{_AND}\s*")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MOST_BOXES = 20
_DELIMITED = (
    r"(?:\$\$?(?P<dollar>[^$]{1,1000})\$\$?"
    r"|\\\((?P<parenthesis>.{1,1000}?)\\\)|\\\[(?P<bracket>.{1,1000}?)\\\])"
)
_FORMULA = re.compile(_DELIMITED, re.DOTALL)
_ANCHORED = re.compile(r"answer[^$\\]{0,100}(?=\$|\\[(\[])", re.IGNORECASE)
_TAIL = 4000  # characters at the end where an answer without a box is looked for

# What a formula may hold without being prose: commands, their words, single letters.
_NO_PROSE = re.compile(
    r"\b(?:and|or|degrees?)\b|\\(?:begin|end)\s*\{[a-z]*\}|\\(?:text|mathrm)[a-z]*\s*\{[^{}]*\}|\\[a-zA-Z]+"
)
_WORD = re.compile(r"[A-Za-z]{2,}")
# Formulas in prose without delimiters: numbers, single letters, brackets and signs in a row.
_PLAIN = re.compile(r"(?:[0-9.]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[-+*/^()=!| ]){3,300}")
_OPERATION = re.compile(r"[-+*/^!|]|\\[a-zA-Z]+|[0-9a-zA-Z)]\s*\(|[0-9][a-zA-Z]")

_SIGNS = str.maketrans(
    {
        "\u2212": "-",
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u00f7": r"\div ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u00b0": r"^\circ ",
    }
)
_ABOUT = re.compile(r"\\approx(?![a-z])|\\simeq(?![a-z])|\u2248")
_NAME = re.compile(r"[^0-9\\]*")
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*([0-9])\s*([0-9])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9])\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*([0-9a-z])", r"\\frac\1{\2}"),
        (r"\\sqrt\s*([0-9](?![0-9])|[a-z])", r"\\sqrt{\1}"),
        (r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])", r"\1\\frac{\2}{\3}"),
        (r"\\(?:text|mathbf|mathrm|mbox)[a-z]*\s*\{\s*(-?[0-9][0-9.,/]*)\s*\}", r"\1"),
        (r"\\(?:text|mathrm)[a-z]*\s*\{\s*(?:percent|percentage|pct)\s*\}|\bpercent\b", r"\\%"),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        # A unit in plain words: 5 zebras is 5.
        (
            r"(?<=[0-9})\]])(?:\s+(?!(?:inf|infinity|and|or|degrees?)\b)[A-Za-z]{2,}){1,3}\s*$",
            "",
        ),
        (r"(?<=[0-9])[eE]([-+]?[0-9]{1,4})(?![0-9])", r" \\times 10^{\1}"),
        (r"\{,\}|,\\!", ","),
        # 12 345, with any of LaTeX's spaces: in threes it is one number.
        (r"(?<![0-9.,])([0-9]{1,3})((?:(?:\\[,;:! ]|~|\s)[0-9]{3})+)(?![0-9])", None),
        (r"\\[,;:!]", " "),
    )
)


def answer(text: str) -> str | None:
    r"""Returns the LaTeX of a completion's answer, None when it has none.

    The last box counts, and with it those that a comma, "and" or "or" joins to it; without a box
    the last formula in `$`, `\(` or `\[` that follows the word "answer". What was only thought is
    no answer.
    """
    text = outside_thinking(text)
    boxes = list(_BOX.finditer(text))[-_MOST_BOXES:]
    if boxes:
        return _boxed(text, boxes)
    tail = text[-_TAIL:]
    anchors = [match.end() for match in _ANCHORED.finditer(tail)]
    return _formulas(tail, anchors[-1]) if anchors else None


def _boxed(text: str, boxes: list[re.Match[str]]) -> str | None:
    contents: list[str] = []
    following = len(text)
    for box in reversed(boxes):
        end = _closing(text, box.end(), following)
        if end is None or (contents and not _BETWEEN_BOXES.fullmatch(text[end + 1 : following])):
            break
        contents.append(text[box.end() : end].strip())
        following = box.start()
    return ", ".join(reversed(contents)) or None


def _closing(text: str, start: int, limit: int) -> int | None:
    """Where the brace that is open at `start` is closed, None when it is not before `limit`."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, limit):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None


def _formulas(text: str, position: int) -> str | None:
    contents: list[str] = []
    while match := _FORMULA.match(text, position):
        contents.append(next(group for group in match.groups() if group is not None).strip())
        separator = _BETWEEN_FORMULAS.match(text, match.end())
        if separator is None:
            break
        position = separator.end()
    return ", ".join(contents) or None


def formula(gold: str) -> str | None:
    """Returns the LaTeX that a gold answer is, or that its box holds; None when it is prose."""
    boxes = list(_BOX.finditer(gold))
    if boxes:
        return _boxed(gold, boxes[-_MOST_BOXES:])
    stripped = gold.strip().rstrip(".")
    match = _FORMULA.fullmatch(stripped)
    if match is not None:
        return next(group for group in match.groups() if group is not None)
    prose = _WORD.search(_NO_PROSE.sub(" ", tidy(stripped)))
    return None if prose or _FORMULA.search(stripped) or not stripped else stripped


def expressions(prompt: str) -> list[str]:
    """Returns the LaTeX of the expressions with operations that a prompt holds, without sides."""
    formulas = [next(g for g in m.groups() if g is not None) for m in _FORMULA.finditer(prompt)]
    rest = _FORMULA.sub(" ? ", prompt)
    formulas += [match.group() for match in _PLAIN.finditer(rest)]
    sides = [side.strip(" .,?") for each in formulas for side in re.split(r"=|,", each)]
    return [side for side in sides if len(side) <= 300 and _OPERATION.search(side)]


def tidy(latex: str) -> str:
    r"""Returns LaTeX as math-verify's grammar reads it: `\dfrac12` as `\frac{1}{2}`, `1\,234`."""
    latex = latex.translate(_SIGNS)
    for pattern, replacement in _REWRITES:
        latex = pattern.sub(replacement if replacement is not None else _joined, latex)
    return _exact(latex).strip().rstrip(".,;").strip()


def _exact(latex: str) -> str:
    """The side of "x = 1/3 = about 0.333" that is exact; the number where the other is a name."""
    left, sign, right = (part.strip() for part in _ABOUT.sub("~", latex, count=1).partition("~"))
    return right if sign and _NAME.fullmatch(left) else left


def _joined(match: re.Match[str]) -> str:
    return re.sub(r"[^0-9]", "", match.group())
