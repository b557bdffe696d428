"""The table of docs/rewards.md, generated from the registered rewards and their docstrings.

    python docs/tables/rewards.py docs/rewards.md

A row has the first line of the class's docstring, and the papers and functions that it names. A
name leads to the heading that has it in backticks.
"""

import re
from pathlib import Path

from page import rewrite

from groupwise import hookspecs
from groupwise.registry import Entry, installed
from groupwise_commands.docstrings import docstring

DOCS = Path(__file__).parents[1]
PAGES = ("rewards.md", "code.md", "proofs.md", "clip.md", "judges.md", "iterative.md")
THEIRS = re.compile(r"(TRL|open-r1)'s `(\w+(?:_reward|_punishment))`")
PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})")


def entries() -> list[Entry]:
    """The rewards of this distribution, in the order in which they are registered."""
    rewards = (entry for entry in installed().entries if entry.kind == "rewards")
    return [entry for entry in rewards if entry.distribution == hookspecs.PROJECT]


def table() -> str:
    rows = ["| reward | gives | accuracy | extra | from |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*rows, *map(_row, entries())])


def _row(entry: Entry) -> str:
    text = docstring(entry.target)
    gives = text.partition("\n")[0].replace("|", "\\|")
    judges = getattr(installed().load(entry.kind, entry.name), "judges", None)
    theirs = [f"{who} `{name}`" for who, name in THEIRS.findall(text)]
    papers = [f"[{n}](https://arxiv.org/abs/{n})" for n in PAPER.findall(text)]
    sources = ", ".join(dict.fromkeys([*theirs, *papers]))
    extra = f"`{entry.extra}`" if entry.extra else ""
    return f"| {_link(entry.name)} | {gives} | {'yes' if judges else ''} | {extra} | {sources} |"


def _link(name: str) -> str:
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        for heading in re.findall(r"^##+ (.*)$", text, re.MULTILINE):
            if f"`{name}`" in heading:
                file = "" if page == PAGES[0] else page
                return f"[`{name}`]({file}#{_slug(heading)})"
    return f"`{name}`"


def _slug(heading: str) -> str:
    """The anchor of a heading, as forges and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    rewrite(table())
