"""The table of docs/algorithms.md, generated from the docstrings of the registered algorithms.

    python docs/tables/algorithms.py docs/algorithms.md

A row has the first line of the class's docstring, the papers that it names, and its formulas: the
lines that contain ` = `.
"""

import re
from typing import Any

from page import rewrite

from groupwise import hookspecs, registry
from groupwise_commands.docstrings import docstring

FORMULA = re.compile(r"^[\w ()]+ = .+(?:; .+)?$")
PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})")
DIVISORS = {"sequence": "B T", "token": "sum of T", "constant": "B L"}
"""By `normalize`, what the loss of a completion is divided by; the page defines the symbols."""


def table() -> str:
    """A row for each algorithm that this distribution registers, those of the core first."""
    rows = [
        "| algorithm | idea | formulas | loss divided by | paper |",
        "| --- | --- | --- | --- | --- |",
    ]
    entries = sorted(registry.installed().entries, key=lambda entry: entry.plugin != "groupwise")
    for entry in entries:
        if entry.kind == "algorithms" and entry.distribution == hookspecs.PROJECT:
            algorithm = registry.installed().load(entry.kind, entry.name)
            rows.append(_row(entry.name, entry.target, algorithm.Config()))
    return "\n".join(rows)


def _row(name: str, target: str, config: Any) -> str:
    text = docstring(target)
    first, *others = (line.strip() for line in text.splitlines())
    formulas = [line.replace("|", "\\|") for line in others if FORMULA.match(line)]
    divisor = DIVISORS[config.normalize]
    if config.normalize == "constant" and config.length:
        divisor = "B" if config.length == 1 else f"B {config.length}"
    papers = ", ".join(f"[{n}](https://arxiv.org/abs/{n})" for n in PAPER.findall(text)) or "-"
    idea = first.rpartition(": ")[2]
    shown = "<br>".join(f"`{formula}`" for formula in formulas)
    return f"| [`{name}`]({_file(target)}) | {idea} | {shown} | `{divisor}` | {papers} |"


def _file(target: str) -> str:
    """The path of a class's source, relative to `docs/`."""
    module = target.partition(":")[0]
    top = "core" if module.startswith("groupwise.") else "plugins"
    return f"../{top}/{module.replace('.', '/')}.py"


if __name__ == "__main__":
    rewrite(table())
