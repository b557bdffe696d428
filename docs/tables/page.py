"""Page: a page of the documentation with a generated part, between two comments."""

import re
import sys
from pathlib import Path


def rewrite(part: str) -> None:
    """Replace the part of the page that the command line names, between comments with the script's
    own name."""
    script, page = map(Path, sys.argv[:2])
    begin = f"<!-- begin: made by python docs/tables/{script.name} -->\n"
    own = re.compile(rf"({re.escape(begin)}).*?(\n<!-- end -->)", re.DOTALL)
    text, count = own.subn(lambda old: f"{old[1]}\n{part}\n{old[2]}", page.read_text("utf-8"))
    if count != 1:
        sys.exit(f"{page} has no lines {begin.strip()} and <!-- end -->")
    page.write_text(text, encoding="utf-8")
