# ruff: noqa: RUF001 - signs that models write
"""Signs of Unicode as LaTeX has them: x² is x^{2}, ¾ is a fraction, full-width digits are ASCII."""

import re
from unicodedata import normalize

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_GREEK = "alpha beta gamma delta theta lambda mu pi rho sigma tau phi psi omega"
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
        **{
            letter: rf"\{name} "
            for letter, name in zip("αβγδθλμπρστφψω", _GREEK.split(), strict=True)
        },
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
        "∴": r"\therefore ",
        **dict.fromkeys("⇒⟹", r"\implies "),
        **dict.fromkeys("✓✔✅☑■□∎", r"\checkmark "),
        "\ufe0f": "",
        "℃": r"\text{ celsius}",
        "℉": r"\text{ fahrenheit}",
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
_SCRIPTED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+|[{''.join(_SUBSCRIPTS)}]+")
_FULL_WIDTH = {0xFF01 + n: 0x21 + n for n in range(94)} | {0x3000: " "}
_STYLED = re.compile("[\U0001d400-\U0001d7ff]+")  # mathematical letters and digits
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?|[a-zA-Z])")


def in_latex(text: str) -> str:
    """Returns the text with signs of Unicode as LaTeX has them."""
    text = _SCRIPTED.sub(_script, text)
    text = _VULGAR.sub(_vulgar, text)
    text = (
        _ROOT.sub(r"\\sqrt{\1}", text.translate(_SIGNS))
        .replace("√", r"\sqrt ")
        .replace("∛", r"\sqrt[3] ")
    )
    return _STYLED.sub(lambda match: normalize("NFKC", match[0]), half_width(text))


def half_width(text: str) -> str:
    """Returns the text with full-width digits, letters and signs as ASCII."""
    return text.translate(_FULL_WIDTH)


def _script(match: re.Match[str]) -> str:
    mapping = _SUPERSCRIPTS if match[0][0] in _SUPERSCRIPTS else _SUBSCRIPTS
    sign = "^" if mapping is _SUPERSCRIPTS else "_"
    return f"{sign}{{{''.join(mapping[character] for character in match[0])}}}"


def _vulgar(match: re.Match[str]) -> str:
    above, below = normalize("NFKC", match[0]).split("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"
