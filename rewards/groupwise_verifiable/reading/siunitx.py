r"""Quantities by LaTeX's package siunitx: `\qty{3}{\metre\per\second}` becomes 3 metre/second."""

import re

from groupwise_verifiable.reading.unit_table import PREFIXES

_GROUP = r"\s*(?:\[[^\]]{0,100}\])?\s*\{((?:[^{}]|\{[^{}]{0,100}\}){0,200})\}"
_QUANTITY = re.compile(rf"\\(?:SI|qty){_GROUP}{_GROUP}")
_UNIT = re.compile(rf"\\(?:si|unit){_GROUP}")
_NUMBER = re.compile(rf"\\num{_GROUP}")
_ANGLE = re.compile(rf"\\ang{_GROUP}")
_PREFIX = re.compile(rf"\\({'|'.join(forms.split()[-1] for forms, _ in PREFIXES)})\s*\\([a-zA-Z]+)")
_WORDS = (
    (re.compile(r"\\tothe\s*\{(-?[0-9]{1,2})\}"), r"^{\1}"),
    (re.compile(r"\\squared(?![a-zA-Z])"), "^2"),
    (re.compile(r"\\cubed(?![a-zA-Z])"), "^3"),
    (re.compile(r"\\per(?![a-zA-Z])"), "/"),
    (re.compile(r"\\degreeCelsius(?![a-zA-Z])"), " celsius"),
    (re.compile(r"\\(?!cdot|times)([a-zA-Z]+)"), r" \1 "),
    (re.compile(r"[.~](?![0-9])"), " "),
)


def without_siunitx(text: str) -> str:
    """Returns a text with the commands of siunitx as numbers and words."""
    if not any(
        command in text for command in (r"\SI", r"\qty", r"\si", r"\unit", r"\num", r"\ang")
    ):
        return text
    text = _QUANTITY.sub(lambda match: f"{_number(match[1])} {_unit(match[2])}", text)
    text = _UNIT.sub(lambda match: _unit(match[1]), text)
    return _ANGLE.sub(r"\1^\\circ ", _NUMBER.sub(lambda match: _number(match[1]), text))


def _number(text: str) -> str:
    return re.sub(r"[eE]([-+]?[0-9]{1,3})\s*$", r" \\times 10^{\1}", text)


def _unit(text: str) -> str:
    if text.strip() in (r"\degree", r"\percent"):
        return r"^\circ " if "degree" in text else r"\%"
    text = _PREFIX.sub(r" \1\2 ", text)
    for pattern, replacement in _WORDS:
        text = pattern.sub(replacement, text)
    return rf"\text{{ {text}}}"
