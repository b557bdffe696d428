"""Calculates the tables of docs/scaling.md and writes them into the page.

python tests/benchmarks/scaling              the tables, in a second
python tests/benchmarks/scaling measure      first the estimates of `groupwise check`, in minutes
"""

import sys

import sizes
from tables import PAGE, rewritten

if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        sizes.measure()
    text = rewritten(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
