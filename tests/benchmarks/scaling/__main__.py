"""Scaling on paper: the tables of docs/scaling.md, written into the page.

python tests/benchmarks/scaling              the tables, in a second
python tests/benchmarks/scaling measure      first what `check` estimates, in some minutes
"""

import sys

import sizes
from tables import PAGE, rewritten

if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        sizes.measure()
    text = rewritten(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
