"""Document: the HTML around a page: style, script, and a policy that forbids any other."""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from groupwise.report.record import read_text
from groupwise.report.wording import brief

_HERE = Path(__file__).parent


def document(title: str, sections: Iterable[str], *, last_step: int) -> str:
    """A page that needs nothing else. sections: HTML; last_step: where charts end."""
    style, script = read_text(_HERE / "page.css"), read_text(_HERE / "page.js")
    digest = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{brief(title)}</title><style>{style}</style></head>"
        f'<body><main data-last="{max(last_step, 1)}">'
        f"{''.join(sections)}</main><script>{script}</script></body></html>\n"
    )


def section(title: str, intro: str, *parts: str) -> str:
    """A part of the page under a heading; nothing where all of its parts are empty."""
    body = "".join(parts)
    intro = f'<p class="intro">{intro}</p>' if intro else ""
    return f"<section><h2>{title}</h2>{intro}{body}</section>" if body else ""
