"""Numbers and text for a page: escaping, formats, and confidence intervals."""

import math
import re
import unicodedata
from collections.abc import Sequence
from html import escape

LONGEST_NAME = 60  # characters
MINUS = "\N{MINUS SIGN}"
_PILE = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{3})"
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def text(value: object) -> str:
    """Any value as HTML text or an attribute: escaped, control characters made visible.

    Controls of direction count too: they could make one thing on the page read as another.
    """
    return escape("".join(c if _harmless(c) else "\ufffd" for c in str(value)))


def brief(value: object, most: int = LONGEST_NAME) -> str:
    """A name as HTML on one line; the middle of a long one is left out.

    Of many combining marks on one letter three are kept, since they would cover the line above.
    """
    whole = _PILE.sub(r"\1", re.sub(r"\s+", " ", str(value)))
    end = most // 3
    short = whole if len(whole) <= most else f"{whole[: most - end - 1]}…{whole[-end:]}"
    shown = text(short)
    is_blank = bool(whole) and not any(c.isprintable() and c != " " for c in shown)
    return "(blank)" if is_blank else shown


def _harmless(character: str) -> bool:
    if character in "\n\r\t" or character.isprintable():
        return True
    return unicodedata.category(character) not in ("Cc", "Cs") and character not in _BIDIRECTIONAL


def number(value: object) -> float | None:
    """The value as a finite number; None for anything else, which a chart cannot show."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e100 else None  # a NaN compares False


def display(value: float, *, percent: bool = False) -> str:
    """A measured value with three digits, or as a percentage with one decimal."""
    if percent and abs(value) < 1e4:
        decimals = 2 if 0 < abs(value) < 0.01 else 1
        return f"{100 * value:.{decimals}f} %".replace("-", MINUS)
    if percent:
        return f"{_power(100 * value)} %".replace("-", MINUS)
    if abs(value) >= 1e6:
        large = f"{value / 1e6:,.4g} M" if abs(value) < 1e9 else _power(value)
        return large.replace("-", MINUS)
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text.replace("e-0", "e-").replace("-", MINUS)


def _power(value: float) -> str:
    return f"{value:.2e}".replace("e+", "e")


def tick_labels(values: Sequence[float], *, percent: bool = False) -> list[str]:
    """Labels with as many decimals as the distance between ticks needs, the same for each."""
    scale, suffix = (100.0, " %") if percent else (1.0, "")
    largest = max(abs(v) for v in values)
    if not percent and largest >= 1e4:
        scale, suffix = (1e-6, " M") if largest >= 1e6 else (1e-3, " k")
    if largest * scale < 1e-3 or largest * scale >= 1e6:
        return [f"{v:.3g}".replace("e-0", "e-").replace("-", MINUS) for v in values]
    step = (values[1] - values[0]) * scale
    decimals = next((d for d in range(7) if math.isclose(round(step, d), step)), 7)
    return [f"{v * scale:.{decimals}f}{suffix if v else ''}".replace("-", MINUS) for v in values]


def duration(seconds: float) -> str:
    """Seconds as text: "1 h 05 min", "2 min 10 s" or "3.5 s"."""
    if not 0 <= seconds < 1e7:
        return f"{display(seconds / 86400)} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s"
    return f"{seconds:.3g} s" if seconds < 10 else f"{rest} s"


def wilson(share: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's (1927) 95% interval of a binomial share, which holds near 0 and 1, too."""
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    half *= z / (1 + z * z / count)
    return max(0.0, centre - half), min(1.0, centre + half)
