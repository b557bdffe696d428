"""Finds mathematics in texts: the answer of a completion, a gold answer, a prompt's expressions.

Completions may be adversarial: every pattern here takes linear time, and an answer without a box is
searched only at the end of the text.
"""

import re
from decimal import Decimal
from fractions import Fraction

from groupwise_verifiable.completion import outside_thinking

# Between boxes or formulas that form one answer, as in "\boxed{2} and \boxed{3}".
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
# A number, and a unit in words, up to the end of its line: "The answer is **42**.", "#### 42".
_STATED = re.compile(
    r"(?:\banswer(?:\s+is)?|(?<!\S)####)[\s*_:]*"
    r"(?P<number>(?:-?[ \t]?\\?\$)?-?[0-9][0-9,./]*%?(?:[ \t]+[A-Za-z]{2,20}){0,3})"
    r"[ \t*_.]*$",
    re.IGNORECASE | re.MULTILINE,
)
_TAIL = 4000  # characters at the end that are searched for an answer without a box

# Words that a formula may contain without being prose: commands, their words, single letters.
_NO_PROSE = re.compile(
    r"\b(?:and|or|degrees?)\b|\\(?:begin|end)\s*\{[a-z]*\}|\\(?:text|mathrm)[a-z]*\s*\{[^{}]*\}|\\[a-zA-Z]+"
)
# Prose. Two or three letters, or capitals, may be a product or points (2xy, BCD), so they count as
# prose only next to another word.
_WORD = re.compile(
    r"[A-Za-z]{2,}\s+[A-Za-z]{2,}|[a-z]{4,}|[A-Z][a-z]{2,}"
    r"|(?i:(?<![a-z])(?:yes|no|nan|one|two|six|ten)(?![a-z]))"
)
# Formulas in prose without delimiters: runs of numbers, single letters, brackets and signs.
_PLAIN = re.compile(r"(?:[0-9.]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[-+*/^()=!| ]){3,300}")
_OPERATION = re.compile(r"[-+*/^!|]|\\[a-zA-Z]+|[0-9a-zA-Z)]\s*\(|[0-9][a-zA-Z]")

_LETTER = re.compile(r"[A-Za-z]")
# Letters that math-verify may take for a unit: 2m, 2 m, 2ab.
_SHORT_END = re.compile(r"(?<=[0-9})\s])\s*([A-Za-z]{1,2})\s*$")

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
_CURRENCY = "[\u20ac\u00a3\u00a5\u20b9]"
_WORDS = r"(?:\s+(?!(?:inf|infinity|and|or|not|degrees?)\b)[A-Za-z]{2,})"  # a word of a unit
_REPEATING = re.compile(
    r"(?<![0-9.])([0-9]{0,50})\.([0-9]{0,50})\\(?:overline|bar)\s*\{([0-9]{1,50})\}"
)
# An option of a multiple choice and its content: \textbf{(C) }12, (C) 12, C. 12.
_OPTION = re.compile(
    r"(?:\\(?:text|math)[a-z]*\s*\{\s*\(?([A-J])[).:]\s*\}|\(?([A-J])[).:](?=\s))"
    r"(?:\\[ ,;:!]|\\q?quad|~|\s)*(\S.*)",
    re.DOTALL,
)
_LARGE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_IN_WORDS = re.compile(
    r"([0-9][0-9,]{0,50}(?:\.[0-9]{1,50})?)(?:\\[ ,;:!]|~|\s)*"
    rf"(\\(?:text|mathrm)[a-z]*\s*\{{)?\s*({'|'.join(_LARGE)})\b"
)
_EITHER_SIGN = re.compile(r"\{[^{},]*\\pm(?![a-z])")
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*([0-9])\s*([0-9])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9])\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*([0-9a-z])", r"\\frac\1{\2}"),
        (r"\\sqrt\s*([0-9](?![0-9])|[a-z])", r"\\sqrt{\1}"),
        (r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])", r"\1\\frac{\2}{\3}"),
        (r"\\langle(?![a-zA-Z])", "("),
        (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\\(sin|cos|tan)\s*\^\s*\{\s*-1\s*\}", r"\\arc\1 "),
        # Currencies; math-verify handles only dollars.
        (
            rf"\\text[a-z]*\s*\{{\s*(?:(?:US)?\\?\$|{_CURRENCY}|Rs\.?)\s*([0-9][0-9.,]*)?\s*\}}",
            r"\1",
        ),
        (rf"{_CURRENCY}|\\(?:pounds|euro|yen)(?![a-zA-Z])", ""),
        (r"(?<=\{)~|~(?=\})", ""),  # 12\mathrm{~cm}
        (  # \text{12 cm}
            rf"\\(?:text|mathbf|mathrm|mbox)[a-z]*\s*\{{\s*(-?[0-9][0-9.,/:]*){_WORDS}{{0,3}}\s*\}}",
            r"\1",
        ),
        (r"\\(?:text|mathrm)[a-z]*\s*\{\s*(?:percent|percentage|pct)\s*\}|\bpercent\b", r"\\%"),
        (r"(?<![a-zA-Z\\])sqrt\s*\(([^()]{1,100})\)", r"\\sqrt{\1}"),
        (r"(?<![a-zA-Z\\])(pi|sin|cos|tan|log|ln)(?![a-zA-Z])", r"\\\1 "),
        # A unit in plain words: 5 zebras is 5.
        (
            rf"(?<=[0-9}})\]]){_WORDS}{{1,3}}(?:\s*/\s*[A-Za-z]+)?(?:\s*\^\s*\{{?[23]\}}?)?\s*$",
            "",
        ),
        (r"(?<=[0-9])[eE]([-+]?[0-9]{1,4})(?![0-9])", r" \\times 10^{\1}"),
        (r"\{,\}|,\\!", ","),
        # 12 345, with any of LaTeX's spaces: groups of three digits are one number.
        (r"(?<![0-9.,])([0-9]{1,3})((?:(?:\\[,;:! ]|~|\s)[0-9]{3})+)(?![0-9])", None),
        (r"\\[,;:!]", " "),
    )
)


def answer(text: str) -> str | None:
    r"""Returns the LaTeX of a completion's answer, None if it has none.

    The answer is the last box, with the boxes that a comma, "and" or "or" joins to it. Without a
    box it is the last formula in `$`, `\(` or `\[` after the word "answer", or a number that is the
    rest of its line after "answer is" or "####". Thinking does not count.
    """
    text = outside_thinking(text)
    boxes = list(_BOX.finditer(text))[-_MOST_BOXES:]
    if boxes:
        return _boxed(text, boxes)
    tail = text[-_TAIL:]
    anchor = max((match.end() for match in _ANCHORED.finditer(tail)), default=-1)
    stated = max(_STATED.finditer(tail), key=re.Match.start, default=None)
    if stated is not None and stated.start("number") >= anchor:
        return stated["number"]
    return _formulas(tail, anchor) if anchor >= 0 else None


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
    """Index of the brace that closes the one open at `start`; None if there is none before
    `limit`."""
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


def in_digits(latex: str) -> str:
    """Returns LaTeX with "1.5 million" as 1500000."""

    def digits(match: re.Match[str]) -> str:
        value = Decimal(match[1].replace(",", "")).scaleb(_LARGE[match[3]])
        return f"{value:f} {match[2] or ''}"

    return _IN_WORDS.sub(digits, latex)


def option(latex: str, gold: str) -> str:
    """Returns, for an answer such as "(C) 12", the letter if gold is a letter, else the 12."""
    match = _OPTION.fullmatch(latex)
    if match is None:
        return latex
    return (
        (match[1] or match[2]) if re.fullmatch(r"\W*(?:\\text\w*\W*)?[A-J]\W*", gold) else match[3]
    )


def formula(gold: str) -> str | None:
    """Returns the LaTeX of a gold answer, or of its box; None if it is prose.

    In GSM8K the answer follows the reasoning and "####".
    """
    gold = gold.rpartition("####")[2]
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
    """Returns the LaTeX of a prompt's expressions with operations, equations split into sides."""
    formulas = [next(g for g in m.groups() if g is not None) for m in _FORMULA.finditer(prompt)]
    rest = _FORMULA.sub(" ? ", prompt)
    formulas += [match.group() for match in _PLAIN.finditer(rest)]
    sides = [side.strip(" .,?") for each in formulas for side in re.split(r"=|,", each)]
    return [side for side in sides if len(side) <= 300 and _OPERATION.search(side)]


def names(prompt: str) -> frozenset[str]:
    """Returns the variables (single letters) in a prompt's formulas."""
    formulas = [next(g for g in m.groups() if g is not None) for m in _FORMULA.finditer(prompt)]
    formulas = [formula for formula in formulas if not _WORD.search(_NO_PROSE.sub(" ", formula))]
    return frozenset().union(*map(_letters, [*formulas, *expressions(_FORMULA.sub(" ", prompt))]))


def ends_in_names(latex: str, known: frozenset[str]) -> bool:
    """Returns whether the letters at the end are variables, as in 2ab, and no unit, as in 2m.

    They are if all are in `known`, or if other variables precede them, as in 3bc+2ab.
    """
    end = _SHORT_END.search(latex)
    if end is None:
        return False
    return set(end[1]) <= known or bool(_letters(latex[: end.start()].rpartition("=")[2]))


def _letters(latex: str) -> frozenset[str]:
    return frozenset(_LETTER.findall(_NO_PROSE.sub(" ", latex)))


def tidy(latex: str) -> str:
    r"""Returns LaTeX in a form that math-verify's grammar reads: `\frac{1}{2}` for `\dfrac12`."""
    latex = latex.translate(_SIGNS)
    for pattern, replacement in _REWRITES:
        latex = pattern.sub(replacement if replacement is not None else _joined, latex)
    latex = _REPEATING.sub(_fraction, _exact(latex))
    if latex.count(r"\pm") == 1 and "," not in latex and _EITHER_SIGN.search(latex):
        # math-verify reads 3 \pm 2, but not \frac{3 \pm 2}{4}.
        latex = ", ".join(latex.replace(r"\pm", sign) for sign in "+-")
    return latex.strip().rstrip(".,;").strip()


def _exact(latex: str) -> str:
    r"""The exact side of "1/3 \approx 0.333"; the number of "x \approx 0.333"."""
    left, sign, right = (part.strip() for part in _ABOUT.sub("~", latex, count=1).partition("~"))
    return right if sign and _NAME.fullmatch(left) else left


def _fraction(match: re.Match[str]) -> str:
    """A repeating decimal as a fraction in lowest terms."""
    whole, decimals, repeated = match.groups()
    value = Fraction(
        int(whole + decimals + repeated or 0) - int(whole + decimals or 0),
        10 ** len(decimals) * (10 ** len(repeated) - 1),
    )
    above, below = value.as_integer_ratio()
    return str(above) if below == 1 else rf"\frac{{{above}}}{{{below}}}"


def _joined(match: re.Match[str]) -> str:
    return re.sub(r"[^0-9]", "", match.group())
