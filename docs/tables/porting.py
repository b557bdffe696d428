"""The tables of docs/porting.md, generated from those of `groupwise port`.

python docs/tables/porting.py docs/porting.md
"""

from collections.abc import Iterator

from page import rewrite

from groupwise_commands.porting.frameworks import FRAMEWORKS
from groupwise_commands.porting.option import Group, Option


def tables() -> str:
    """For each framework a heading, and a table for each group of its options."""
    parts = []
    for name, framework in FRAMEWORKS.items():
        parts.append(
            f"## From {framework.title}\n\n`groupwise port {name}` reads {framework.reads}."
        )
        parts += [table(group) for group in framework.table]
    return "\n\n".join(parts)


def table(group: Group) -> str:
    """Theirs, ours and what differs. `same` rows have no remark."""
    rows = [f"**{group.title}**", "", "| theirs | here | note |", "|---|---|---|"]
    return "\n".join([*rows, *(_row(option) for option in group.options)])


def _row(option: Option) -> str:
    theirs = ", ".join(f"`{name}`" for name in option.names)
    here = option.here or "nothing to set"
    return f"| {theirs} | {here} | {'; '.join(filter(None, _remarks(option)))} |"


def _remarks(option: Option) -> Iterator[str]:
    yield option.note
    if option.always and option.default is not None and "there" not in option.note:
        default = {True: "on", False: "off"}.get(option.default, option.default)
        yield f"{default} there unless set"


if __name__ == "__main__":
    rewrite(tables())
