r"""Takes the dressing off mathematics: one spelling for what looks alike.

`\dfrac`, `\nicefrac` and ¾ become `\frac`; sizes, colours, bold type, spaces and the punctuation of
other scripts go. Every pattern takes linear time: the trained model writes these texts.
"""

import re
from functools import lru_cache

from groupwise_verifiable.reading.commands import spelled_out
from groupwise_verifiable.reading.measures import is_unit
from groupwise_verifiable.reading.signs import in_latex
from groupwise_verifiable.reading.siunitx import without_siunitx
from groupwise_verifiable.reading.words import LARGE, changes, number_of

_SPACE = r"(?:\\[,;:! ]|~|[\s\u00a0\u2009\u202f]|'|\\?_|\\thinspace\s?|\\(?:text|mbox)\s*\{\s*\})"
_DIGITS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16,
}  # fmt: skip
_DIGIT = rf"(?P<base>[0-9]{{1,2}}(?![0-9])|{'|'.join(_DIGITS)})"
_ENDS = r"[^\[\]]{1,80}[,;][^\[\]]{1,80}"
_DOLLARS = "(?:US|AU?|CA?|HK|NZ|S)?"
_BOLD = r"\\(?:hat|vec|mathbf|bm|boldsymbol)\s*\{\s*(?:\\(?:mathbf|hat|bm|vec)\s*\{?\s*)?"
_CLOSED = r"\}{1,2}"
_TEXT = r"\\(?:text|math)[a-z]*\s*\{\s*"
_BASED = r"(?<![A-Za-z0-9.])(?P<digits>[0-9A-F]+)"
_LOOKS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:color|phantom|hspace|vspace|label|tag)\*?\s*\{[^{}]{0,30}\}", " "),
        (r"\\textcolor\s*\{[^{}]{0,30}\}", " "),
        # A system of equations, and names of two letters: a vector, a segment.
        (
            (
                r"\\left\s*\\\{\s*\\begin\s*\{(array|aligned|matrix|split)\}\s*(?:\{[lcr]{1,3}\})?"
                r"(.{1,400}?)\\end\s*\{\1\}\s*\\right\s*\."
            ),
            lambda m: m[2].replace("&", " "),
        ),
        (r"\\(?:overrightarrow|vec|mathbf|bm|boldsymbol)\s*\{\s*([A-Z]{2})\s*\}", r"\\ray \1 "),
        (rf"{_BOLD}\\?([ij])(?:math)?\s*{_CLOSED}|{_BOLD}(k)\s*{_CLOSED}", r" \1\2 "),
    )
)


def _selections(kind: str, total: int, chosen: int) -> str:
    """How many selections, C, or arrangements, P or A, there are."""
    if kind == "C":
        return rf"\binom{{{total}}}{{{chosen}}}"
    return rf"\frac{{{total}!}}{{{max(0, total - chosen)}!}}"


def _numbered(match: re.Match[str]) -> str:
    """The answers to numbered questions in their order: (1) 3; (2) 5."""
    parts = [part.strip(" ,;.") for part in re.split(r"\([1-3]\)", match[0])[1:]]
    return f"({', '.join(parts)})" if all(parts) else match[0]


_REWRITES = tuple(
    (re.compile(pattern), replacement, pattern.startswith(r"\\") and "|" not in pattern)
    for pattern, replacement in (
        (r"\\\\\s*\[[^\]]{0,10}\]", r"\\\\"),
        (r"\\(?:begin|end)\s*\{(?:aligned|align\*?|gathered|split|cases|equation\*?)\}", " "),
        (r"\{\s*\\(rm|bf|it|sf|tt)(?![a-zA-Z])\s*([^{}]*)\}", r"\\math\1{\2}"),
        (
            r"(?<![A-Za-z])([CPA])\s*_\s*\{?([0-9]{1,3})\}?\s*\^\s*\{?([0-9]{1,3})\}?",
            lambda m: _selections(m[1], int(m[2]), int(m[3])),
        ),
        (r"\\mathbb\s*\{?\s*([PLDWSE])\s*\}?", r"\1"),
        (r"\\(?:bar|tilde|hat|widehat)\s*\{?\s*([a-y])\s*\}?(?![a-zA-Z])", r" \1 "),
        (r"(?<![A-Za-z])E\s*\[([^\[\]]{1,30})\](?=\s*=)", r"E(\1)"),
        (r"\^\s*\{?\s*\\prime(?![a-z])\s*\}?", "'"),
        (r"(?<![0-9A-Za-z.])0b([01]{2,})(?![0-9])", r"\1_{2}"),
        (r"(?<![0-9A-Za-z.])0x([0-9A-F]{2,})(?![0-9A-Z])", r"\1_{16}"),
        (
            (
                r"[\s(]*(?:\\[pb]?mod(?![a-z])|(?:\\(?:text|mathrm|operatorname)\s*\{\s*|\b)mod\b\s*\}?)"
                r"(?:\\[ ,;]|\s)*\{?\s*([0-9]{1,9}|[a-z])\s*\}?\s*\)?"
            ),
            r" \\pmod{\1}",
        ),
        (r"(?<=[0-9])\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (
            (
                r"(?:\{\s*\}|\\vphantom\{.\})?\s*[_^]\s*\{?([0-9]{1,3})\}?\s*([CP])\s*"
                r"_\s*\{?([0-9]{1,3})\}?"
            ),
            lambda m: _selections(m[2], int(m[1]), int(m[3])),
        ),
        (r"(?<![A-Za-z])([fgh])((?:\^\{-1\})?)\s*:\s*([a-z])\s*\\mapsto", r"\1\2(\3)="),
        # Items side by side: x = 4 \quad y = 3, and 1 \quad 2.
        (r"(?:(?<=[0-9])|(?<=[0-9]\}))\s*\\q?quad\s*(?=[a-z](?:_\{?\w\}?)?\s*=|-?[0-9])", ", "),
        (r"\\\|", "|"),
        (r"_\s*\{?\s*\\(max|min)(?![a-z])\s*\}?", r"_{\\text{\1}}"),
        (r":=", "="),
        (r"\bper cent\b", "percent"),
        (r"\bDNE\b", "does not exist"),
        (r"\\textsuperscript\s*\{([^{}]{1,9})\}", r"^{\1}"),
        (r"\\textsubscript\s*\{([^{}]{1,9})\}", r"_{\1}"),
        (r"\\\^(?=\s*\{?-?[0-9])", "^"),
        (
            r"\\(text|mathrm)\s*\{\s*(k?)ms(?:\}\s*\^\s*\{\s*-([12])\s*\}|\s*\^\s*\{?-([12])\}?\s*\})",
            lambda m: rf"\text{{ {m[2]}m/s^{m[3] or m[4]}}}",
        ),
        (r"(?<=[\w)])\*\*(?=[\w(])", "^"),
        (r"\{\s*([-+:.])\s*\}", r"\1"),
        # Bases: (1011)_2, 1011_{(2)}, \text{FF}_{16}, 1011_{\text{base two}}, 1011 (base 2).
        (
            rf"(?:{_TEXT}|\\overline\s*\{{|[(\[]\s*)([0-9A-F]+)\s*[)\]}}]\s*_",
            r"\1_",
        ),
        (
            (
                rf"(?<=[0-9A-F])\s*_\s*(?:\{{\s*)?[(\[]?\s*(?:{_TEXT})?(?:base[\s-]*)?\}}?\s*{_DIGIT}"
                r"\s*[)\]}]{0,3}"
            ),
            lambda m: f"_{{{_DIGITS.get(m['base'], m['base'])}}}",
        ),
        (
            (
                rf"{_BASED}\s*(?:{_TEXT})?[(\[]?\s*(?:in )?base[\s-]*\}}?\s*\$?{_DIGIT}"
                r"\s*[)\]}]{0,3}\s*$"
            ),
            lambda m: f"{m['digits']}_{{{_DIGITS.get(m['base'], m['base'])}}}",
        ),
        # Open ends of intervals by brackets that look away: ]0,1[ and [0,1[.
        (
            rf"(?:(?<=[\s=,;pns])|^)\]({_ENDS})([\[\]])",
            lambda m: f"({m[1]}{')' if m[2] == '[' else ']'}",
        ),
        (rf"\[({_ENDS})\[(?=\s*(?:$|[,;)}}]|\\cup|\\setminus))", r"[\1)"),
        (r"\bequals\b|\bis equal to\b", " = "),
        ("<=", r" \\le "),
        (">=", r" \\ge "),
        ("!=", r" \\ne "),
        (r"\.\.\.", r"\\ldots "),
        (r"\\mathbb\s*\{?\s*([RNZQC])\s*\}?", r"\\mathbb\1 "),
        (r"\^\s*\{\s*(?:\\circ|\^\\circ|\\(?:text|mathrm)\s*\{o\})\s*\}", r"^\\circ "),
        (rf"({_TEXT})(?:units?|u)\s*\}}\s*\^\s*\{{?[23]\}}?", r"\1units}"),
        (r"\\&", " and "),
        (r"^([^{}=]{1,60}?)(\\over(?![a-z])[^{}=]{1,60})$", r"{\1\2}"),
        (r"\\text\s*\{\s*,\s*\}", ","),
        (r"^\(1\)[^()]{1,99}\(2\)[^()]{1,99}(?:\(3\)[^()]{1,99})?$", _numbered),
        (
            r"\^\s*\\circ\s*(?:\\(?:text|math)[a-z]*\s*\{\s*)?([CF])(?![A-Za-z])\s*\}?",
            lambda m: rf"\text{{ {'celsius' if m[1] == 'C' else 'fahrenheit'}}}",
        ),
        (r"\\text[a-z]*\s*\{\s*([€£¥₹])\s*([0-9.,]*)\s*\}", r"\1\2"),
        (r"((?:[0-9]\u0305)+)", lambda m: rf"\overline{{{m[0].replace(chr(0x305), '')}}}"),
        (
            r"\.([0-9]*)\\(?:dot|bar)\s*\{?([0-9])\}?([0-9]*)\\(?:dot|bar)\s*\{?([0-9])\}?",
            r".\1\\overline{\2\3\4}",
        ),
        (r"\\overline\s*\{([0-9 ]+)\}", lambda m: m[0].replace(" ", "")),
        (r"\.\s*\}\s*$", "}"),
        (
            (
                r"(?:\\text\s*\{)?,?\s*\bfor (?:all|any|every)(?: real| integer)?s?"
                r"(?: numbers?| values? of)?\s*\}?\s*\$?[a-z]\$?\s*\}?\s*$"
            ),
            "",
        ),
        (r"\\mathbbR\s*\^\s*\{?\s*(?:\*|\\cdot|\\times)\s*\}?", r"\\mathbbR \\setminus \\{0\\}"),
        (r"\\mathbbR\s*\\\s*\{([^{}\\]{1,50})\}", r"\\mathbbR \\setminus \\{\1\\}"),
        (r"\\setminus\s*\{([^{}]{1,50})\}", r"\\setminus \\{\1\\}"),
        (
            r"^.*\\therefore(?![a-zA-Z])|^\s*\\implies|^-?(?:[0-9]|\\frac)[^=<>]*\\implies(?=.*[0-9])|^[^=<>]*[=<>].*(?<!\\not)\\implies",
            " ",
        ),
        (r"\\(?:surd|qedhere)\s*$", " "),
        (r"\b(all reals?) x\b", r"\1 numbers"),
        (r"\b(?:negative|minus) infinity\b", r"-\\infty"),
        (r"(\\overline\s*\{[0-9]+\})\s*\\ldots", r"\1"),
        (r"\\bar\s*\{?\s*z\s*\}?", r"\\overline{z}"),
        (r"\\mathbbR\s*(?:\^\s*\{?\s*\+\s*\}?|_\s*\{\s*>\s*0\s*\})", r"(0,\\infty)"),
        (r"^<([^<>=]+,[^<>=]+)>$", r"\\langle \1\\rangle "),
        (r"(\\?\$\s*[0-9.,]+)\s*k\b", r"\1 thousand"),
        # The same number again: 1/4 (25%), 0.25 (or 1/4); and 12.50/hour.
        (r"^([^()=]{1,40}?)\s*\((?:or )?([0-9.]+\s*\\?%)\)$", r"\1 or \2"),
        (r"^([^()=]{1,40}?)\s*\(or ([^()]{1,40})\)$", r"\1 or \2"),
        (
            r"(?<=[0-9])\s*/\s*((?:\\(?:text|mathrm)\s*\{\s*)?)([a-z]{3,})(?![a-z(])",
            lambda m: f" {m[1]}per {m[2]}" if is_unit(m[2]) else m[0],
        ),
        (r"\\exp(?![a-zA-Z])\s*\(([^()]{1,50})\)", r" e^{\1}"),
        (r"(?<![A-Za-z\\])([A-Z])e(?=\s*\^)", r"\1 e"),
        (r"(?<![A-Za-z\\])C\((?=[^()]*[a-z])([^(),]{1,20}),([^(),]{1,20})\)", r"\\binom{\1}{\2}"),
        (r"\(\s*([\u4e00-\u9fff]{1,4})\s*\)\s*$", r"\1"),
        (rf"{_TEXT}{_DOLLARS}\\?\$\s*([0-9.,]*)\s*\}}", r"\\$\1"),
        (rf"(?<![A-Za-z]){_DOLLARS}\\?\$(?=(?:\\[,; ]|[\s~])*[0-9])", r"\\$"),
        (r"\\text[a-z]*\s*\{\s*([0-9]+)\s*\}", r"\1"),
        (r"\b([apAP])\.\s?([mM])\b\.?", r"\\text{\1\2}"),
        (r"\bUSD?(?=\s*\\?\$)", " "),
        (r"\{,\}|\{\\,\}(?=[0-9])|,\\!\s*|\\!", lambda m: "," if "," in m[0] else ""),
        # 12 345, with any of LaTeX's spaces, 12'345, 12_345: groups of three digits are one number.
        (
            rf"(?<![0-9.,/])[0-9]{{1,3}}(?:{_SPACE}[0-9]{{3}})+(?![0-9/]|\s*/)",
            lambda m: re.sub(r"[^0-9]", "", m[0]),
        ),
        (r"(?<!\\)\\(?:[,;:> ]|(?:quad|qquad|enspace|thinspace|hfill)(?![a-zA-Z]))|~|\u00a0", " "),
        (r"\*\*|__(?=\w)|`", " "),
        (r"\(\s*(-?[0-9.]+)\s*\|\s*(-?[0-9.]+)\s*\)", r"(\1, \2)"),
        (  # a column as a row: (1 0 4)^T
            r"([(\[])\s*(-?[0-9.]+(?:\s+-?[0-9.]+)+)\s*[)\]]\s*\^\s*\{?\s*T(?![A-Za-z])\s*\}?",
            lambda m: f"({', '.join(m[2].split())})",
        ),
    )
)
_QUOTES = (('"', '"'), ("\u201c", "\u201d"), ("``", "''"))
# Words in brackets behind an answer: "2 (the remainder)".
_ASIDE = re.compile(r"(?<=[^\s=])\s+\(((?:[0-9]+ )?[a-z]{3,}[^()=<>]{0,60})\)$")
_MEANING = {"and", "option", "choice", "sin", "cos", "tan", "log", *LARGE}
FORMULA = re.compile(
    r"\$\$?([^$]{1,1000})\$\$?|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]", re.DOTALL
)
"""A formula in prose, with its delimiters; it matches one of three groups."""


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """Returns the text in the spelling that the grammar reads."""
    text = in_latex(without_siunitx(text))
    if "\\" in text:
        for pattern, replacement in _LOOKS:
            text = pattern.sub(replacement, text)
        text = spelled_out(text)
    for pattern, replacement, is_of_command in _REWRITES:
        if not is_of_command or "\\" in text:
            text = pattern.sub(replacement, text)
    if "&" in text and "matrix" not in text and "array" not in text:
        text = text.replace("&", " ")  # of aligned equations
    return " ".join(_ASIDE.sub(_aside, undelimited(text)).split())


def _aside(match: re.Match[str]) -> str:
    """What stays of words in brackets: all, if one of them changes a value."""
    words = re.findall(r"[a-z]+", match[1].lower())
    if words[0] == "the":
        return ""
    kept = _MEANING & set(words) or any(map(changes, words)) or number_of(match[1]) is not None
    return match[0] if kept or (len(words) == 1 and len(words[0]) < 4) else ""


def undelimited(text: str) -> str:
    """Returns the text without signs of a formula around it and without a full stop after it."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if not text.endswith((r"\ldots", "..")):
            text = text.rstrip(".,;").rstrip()
        for opening, closing in (
            ("$$", "$$"),
            ("$", "$"),
            (r"\(", r"\)"),
            (r"\[", r"\]"),
            *_QUOTES,
        ):
            inside = text[len(opening) : len(text) - len(closing)]
            if (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and opening not in inside
            ):
                text = inside
    return text
