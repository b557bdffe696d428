# ruff: noqa: RUF001 - signs that models write
r"""Takes the dressing off mathematics: one spelling for what looks alike.

`\dfrac`, `\nicefrac` and ¾ become `\frac`; sizes, colours, bold type, spaces and the punctuation of
other scripts go. Every pattern takes linear time: the trained model writes these texts.
"""

import re
from unicodedata import normalize

from groupwise_verifiable.reading.words import LARGE, changes, number_of

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−–‐‑﹣－", "-"),
        **dict.fromkeys("×✕∗", r"\times "),
        **dict.fromkeys("·⋅∙•", r"\cdot "),
        **dict.fromkeys("÷", r"\div "),
        **dict.fromkeys("⁄∕／", "/"),
        **dict.fromkeys("。．", "."),
        **dict.fromkeys("、，", ","),
        **dict.fromkeys("‘’′", "'"),
        "∶": ":",
        "π": r"\pi ",
        "θ": r"\theta ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "⩽": r"\le ",
        "≥": r"\ge ",
        "⩾": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "≡": r"\equiv ",
        "°": r"^\circ ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "∖": r"\setminus ",
        "ℝ": r"\mathbb{R}",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "…": r"\ldots ",
        "⋯": r"\ldots ",
        "∠": r"\angle ",
        "∧": r"\land ",
        "∨": r"\lor ",
        "或": r" \lor ",
        **dict.fromkeys("和与且及", r" \land "),
        "㎝": "cm",
        "㎡": "m^2",
        "￥": "¥",
        "％": "%",
    }
)
_WRAPPERS = (
    r"textcolor|colorbox|underline|underbrace|overbrace|mathbf|bm|boldsymbol|mathit|mathsf|mathtt|"
    r"mathcal|mathscr|mathnormal|ensuremath|displaystyle|boxed|fbox|hbox|uline|vec|"
    r"emph|textit|textsf|texttt|bold"
)
_SPACE = r"(?:\\[,;:! ]|~|[\s\u00a0\u2009\u202f])"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:color|phantom|hspace|vspace|label|tag)\*?\s*\{[^{}]{0,30}\}", " "),
        (r"\\textcolor\s*\{[^{}]{0,30}\}", " "),
        (rf"\\(?:{_WRAPPERS})(?![a-zA-Z])", " "),
        (r"\\(?:left|right|[bB]igg?[lrm]?|middle|textstyle|limits)(?![a-zA-Z])", " "),
        (r"\\\\\s*\[[^\]]{0,10}\]", r"\\\\"),
        (r"\\(?:tiny|small|normalsize|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])", " "),
        (r"\\(?:begin|end)\s*\{(?:aligned|align\*?|gathered|split|cases|equation\*?)\}", " "),
        (
            r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}",
            r"\\text{\1/\2}",
        ),
        (r"\{\s*([-+:])\s*\}", r"\1"),
        (r"\(\s*([0-9A-F]+)\s*\)\s*_", r"\1_"),
        (r"_\s*\{\s*\\text\s*\{\s*two\s*\}\s*\}", "_2"),
        (r"_\s*\{\s*\\text\s*\{\s*ten\s*\}\s*\}", "_{10}"),
        (r"\bequals\b|\bis equal to\b", " = "),
        (r"\\(?:n|d|t|c|s|nice|x)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\nicefrac|\\tfrac", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\(?:lbrace|\{)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace|\})(?![a-zA-Z])", r"\\}"),
        (r"\\[lr]brack(?![a-zA-Z])", lambda m: "[" if m[0][1] == "l" else "]"),
        (r"\\[lr]vert(?![a-zA-Z])", "|"),
        (r"\\leq?(?:slant|q)?(?![a-zA-Z])|<=", r" \\le "),
        (r"\\geq?(?:slant|q)?(?![a-zA-Z])|>=", r" \\ge "),
        (r"\\neq(?![a-zA-Z])|!=", r" \\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:ldots|dots|cdots|dotsc)(?![a-zA-Z])|\.\.\.", r"\\ldots "),
        (r"\\(?:varnothing|empty)(?![a-zA-Z])", r"\\emptyset "),
        (r"\\mathbb\s*\{?\s*([RNZQC])\s*\}?|\\(Reals)(?![a-zA-Z])", r"\\mathbb\1 "),
        (r"\\(?:degree|degrees)(?![a-zA-Z])|\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\\(?:simeq|doteq|sim)(?![a-zA-Z])", r"\\approx "),
        (r"\\pounds(?![a-zA-Z])", "£"),
        (r"\\euro(?![a-zA-Z])", "€"),
        (r"\\yen(?![a-zA-Z])", "¥"),
        (r"\\text[a-z]*\s*\{\s*([€£¥₹])\s*([0-9.,]*)\s*\}", r"\1\2"),
        (r"\.([0-9]*)\\dot\s*\{?([0-9])\}?([0-9]*)\\dot\s*\{?([0-9])\}?", r".\1\\overline{\2\3\4}"),
        (r"\\bigcup(?![a-zA-Z])", r"\\cup "),
        (r"\\vert(?![a-zA-Z])", "|"),
        (r"\.\s*\}\s*$", "}"),
        (
            (
                r",?\s*(?:\\text\s*\{\s*)?(?:where |with )?\$?\s*[a-z]\s*\\in\s*\\mathbb\s*"
                r"\{?[ZN]\}?\s*\$?\s*\}?\s*$"
            ),
            "",
        ),
        (
            (
                r"\\text\s*\{,?\s*for (?:all|any|every)(?: real| integer)?s?\s*\}?"
                r"\s*\$?[a-z]\$?\s*\}?\s*$"
            ),
            "",
        ),
        (r"\\exp(?![a-zA-Z])\s*\(([^()]{1,50})\)", r"e^{\1}"),
        (r"\(\s*([\u4e00-\u9fff]{1,4})\s*\)\s*$", r"\1"),
        (r"\\text(?:rm|bf|up|normal|)\s*\{\s*(?:US|A|C)?\\?\$\s*([0-9.,]*)\s*\}", r"\\$\1"),
        (r"\\text[a-z]*\s*\{\s*([0-9]+)\s*\}", r"\1"),
        (r"\b([apAP])\.\s?([mM])\b\.?", r"\\text{\1\2}"),
        (r"\bRs\.?(?=[\s\d}])|\bUSD?(?=\s*\\?\$)", " "),
        (r"\{,\}|\{\\,\}(?=[0-9])|,\\!\s*|\\!", lambda m: "," if "," in m[0] else ""),
        # 12 345, with any of LaTeX's spaces: groups of three digits are one number.
        (
            rf"(?<![0-9.,/])[0-9]{{1,3}}(?:{_SPACE}[0-9]{{3}})+(?![0-9/]|\s*/)",
            lambda m: re.sub(r"[^0-9]", "", m[0]),
        ),
        (r"(?<!\\)\\(?:[,;:> ]|(?:quad|qquad|enspace|thinspace|hfill)(?![a-zA-Z]))|~|\u00a0", " "),
        (r"\*\*|__(?=\w)|`", " "),
    )
)
_SCRIPTED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+|[{''.join(_SUBSCRIPTS)}]+")
# Words in brackets behind an answer: "2 (the remainder)".
_ASIDE = re.compile(r"(?<=[^\s=])\s+\(([a-z]{3,}[^()]{0,60})\)$")
_MEANING = {"and", "sin", "cos", "tan", "log", *LARGE}
_FULL_WIDTH = {0xFF01 + n: 0x21 + n for n in range(94)} | {0x3000: " "}
FORMULA = re.compile(
    r"\$\$?([^$]{1,1000})\$\$?|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]", re.DOTALL
)
"""A formula in prose, with its delimiters; it matches one of three groups."""

_STYLED = re.compile("[\U0001d400-\U0001d7ff]+")  # mathematical letters and digits
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?|[a-zA-Z])")


def tidy(text: str) -> str:
    """Returns the text in the spelling that the grammar reads."""
    text = _SCRIPTED.sub(_script, text)
    text = _VULGAR.sub(_vulgar, text)
    text = (
        _ROOT.sub(r"\\sqrt{\1}", text.translate(_SIGNS))
        .replace("√", r"\sqrt ")
        .replace("∛", r"\sqrt[3] ")
    )
    text = _STYLED.sub(lambda match: normalize("NFKC", match[0]), half_width(text))
    for pattern, replacement in _REWRITES:
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


def half_width(text: str) -> str:
    """Returns the text with full-width digits, letters and signs as ASCII."""
    return text.translate(_FULL_WIDTH)


def undelimited(text: str) -> str:
    """Returns the text without signs of a formula around it and without a full stop after it."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if not text.endswith((r"\ldots", "..")):
            text = text.rstrip(".,;").rstrip()
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            inside = text[len(opening) : len(text) - len(closing)]
            if (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and opening not in inside
            ):
                text = inside
    return text


def _script(match: re.Match[str]) -> str:
    mapping = _SUPERSCRIPTS if match[0][0] in _SUPERSCRIPTS else _SUBSCRIPTS
    sign = "^" if mapping is _SUPERSCRIPTS else "_"
    return f"{sign}{{{''.join(mapping[character] for character in match[0])}}}"


def _vulgar(match: re.Match[str]) -> str:
    above, below = normalize("NFKC", match[0]).split("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"
