"""The HTML around a page's sections: one file without external resources.

It loads no style, font or image, and its content security policy allows only our own script.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from groupwise_report.charts import Chart, draw
from groupwise_report.wording import brief, text

_HERE = Path(__file__).parent
SCRIPTS = ("page.js", "smoothing.js", "filters.js", "scheme.js")
_CONTROLS = (  # shown by the script, without which they would do nothing
    '<nav class="controls" hidden>'
    '<label>Smoothing <input type="range" min="0" max="5" value="2"><output></output></label>'
    '<label>Colours <select><option value="">of the system</option>'
    '<option value="light">light</option><option value="dark">dark</option></select></label></nav>'
)
MARK = '<meta name="generator" content="groupwise">'
"""Marks our pages, so that no other file is overwritten."""


def document(
    title: str, sections: Iterable[str], *, last_step: int, version: str | None = None
) -> str:
    """A whole page. last_step: the end of the axes of its charts.

    version: of a page that is served while runs go on; its script asks the server for newer ones.
    """
    style, script = _read("page.css"), "".join(map(_read, SCRIPTS))
    allowed, follows = "default-src 'none'; img-src data:; style-src 'unsafe-inline'", ""
    if version is not None:
        script += _read("follow.js")
        allowed += "; connect-src 'self'"
        follows = f' data-version="{text(version)}"'
    digest = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{MARK}'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}; script-src \'{digest}\'">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{brief(title)}</title><style>{style}</style></head>"
        f'<body>{_CONTROLS}<main data-last="{max(last_step, 1)}"{follows}>'
        f"{''.join(sections)}</main><script>{script}</script></body></html>\n"
    )


def _read(name: str) -> str:
    return _HERE.joinpath(name).read_text("utf-8")


def section(title: str, intro: str, *parts: str) -> str:
    """A part of the page under a heading; "" if all parts are empty. All arguments are HTML."""
    body = "".join(parts)
    intro = f'<p class="intro">{intro}</p>' if intro else ""
    return f"<section><h2>{title}</h2>{intro}{body}</section>" if body else ""


def folded(title: str, inside: str) -> str:
    """A part of the page that opens at a click. All arguments are HTML."""
    return f"<details><summary>{title}</summary>{inside}</details>"


def grid(figures: Iterable[str]) -> str:
    """Charts and cards side by side, as many as fit the window."""
    inside = "".join(figures)
    return f'<div class="charts">{inside}</div>' if inside else ""


def charts(each: Iterable[Chart], last_step: int) -> str:
    return grid(draw(chart, max(last_step, 1)) for chart in each)


def table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], above: str = "", kind: str = ""
) -> str:
    """A card with a table; "" without rows. Title and cells are HTML.

    above: HTML between title and table; kind: a CSS class of the card.
    """
    if not rows:
        return ""
    header = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    heading = f"<h3>{title}</h3>" if title else ""
    return (
        f'<div class="card{" " * bool(kind)}{kind}">{heading}{above}'
        f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"
    )
