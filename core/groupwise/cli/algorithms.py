"""The table of docs/algorithms.md, made from what the registered algorithms say of themselves.

    python -m groupwise.cli.algorithms docs/algorithms.md

writes it into the page, between its two marks. An algorithm's row is its class's docstring: the
first line, the papers that it names, and each formula, a line of its own with ` = ` in it.
"""

import re
import sys
from pathlib import Path
from typing import Any

from groupwise import hookspecs
from groupwise.plugins import registry
from groupwise.plugins.docstrings import docstring

BEGIN = "<!-- begin: made by python -m groupwise.cli.algorithms -->"
END = "<!-- end -->"
FORMULA = re.compile(r"^[\w ()]+ = .+(?:; .+)?$")
PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})")
AVERAGES = {
    "sequence": "own length, then completions",
    "token": "decisions",
    "constant": "completions x longest",
}


def table() -> str:
    """A row for each algorithm that this distribution registers, those of the core first."""
    rows = [
        "| algorithm | is | computes | averaged over | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    ours = sorted(registry.installed().entries, key=lambda entry: entry.plugin != "groupwise")
    for entry in ours:
        if entry.kind == "algorithms" and entry.distribution == hookspecs.PROJECT:
            kind = registry.installed().load(entry.kind, entry.name)
            rows.append(_row(entry.name, entry.target, kind.Config()))
    return "\n".join(rows)


def _row(name: str, target: str, config: Any) -> str:
    text = docstring(target)
    first, *others = (each.strip() for each in text.splitlines())
    formulas = [each.replace("|", "\\|") for each in others if FORMULA.match(each)]
    averaged = AVERAGES[config.normalize]
    if config.normalize == "constant" and config.length:
        averaged = "completions" if config.length == 1 else f"completions x {config.length}"
    papers = ", ".join(f"[{n}](https://arxiv.org/abs/{n})" for n in PAPER.findall(text)) or "-"
    what = first.rpartition(": ")[2]
    computes = "<br>".join(f"`{each}`" for each in formulas)
    return f"| [`{name}`]({_file(target)}) | {what} | {computes} | {averaged} | {papers} |"


def _file(target: str) -> str:
    """The source of a class, from the folder of the pages."""
    module = target.partition(":")[0]
    top = "core" if module.startswith("groupwise.") else "plugins"
    return f"../{top}/{module.replace('.', '/')}.py"


def rewritten(page: str) -> str:
    """The page with a fresh table between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(rewritten(_page.read_text(encoding="utf-8")), encoding="utf-8")
