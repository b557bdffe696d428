"""Page: a page of the documentation with a generated part, between two comments."""

import re
import sys
from pathlib import Path

PART = re.compile(r"(<!-- begin: [^\n]* -->\n).*(\n<!-- end -->)", re.DOTALL)


def rewrite(part: str) -> None:
    """Replace the generated part of the page that the command line names."""
    page = Path(sys.argv[1])
    text, count = PART.subn(lambda old: f"{old[1]}\n{part}\n{old[2]}", page.read_text("utf-8"))
    if count != 1:
        sys.exit(f"{page} has no lines <!-- begin: ... --> and <!-- end -->")
    page.write_text(text, encoding="utf-8")
