"""The table of parts in docs/plugins.md, generated from `groupwise.algorithms.parts`.

python docs/tables/parts.py docs/plugins.md
"""

from inspect import isfunction
from typing import Any

from page import rewrite

from groupwise.algorithms import parts
from groupwise_commands.docstrings import docstring


def table() -> str:
    rows = [
        "| part | argument | is | own options | fills in |",
        "| --- | --- | --- | --- | --- |",
    ]
    exported = {name: getattr(parts, name) for name in parts.__all__}
    return "\n".join([*rows, *(_row(n) for n, each in exported.items() if hasattr(each, "slot"))])


def _row(name: str) -> str:
    part = getattr(parts, name)
    first = docstring(f"{part.__module__}:{name}").partition("\n")[0].replace("|", "\\|")
    methods = [key for key, value in vars(part).items() if isfunction(value) and key[0] != "_"]
    return f"| `{name}` | `{part.slot}` | {first} | {_words(_options(part))} | {_words(methods)} |"


def _options(part: Any) -> list[str]:
    """Those that it adds to what it inherits."""
    fields = part.Config.model_fields
    inherited = {
        n for base in part.__bases__ if hasattr(base, "Config") for n in base.Config.model_fields
    }
    return [name for name in fields if name not in inherited]


def _words(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    rewrite(table())
