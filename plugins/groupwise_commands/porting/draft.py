"""draft: the YAML of a port: sections in the usual order, a comment above what changed."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.config.yaml_lines import write
from groupwise_commands.porting.port import Port

ORDER = (
    "output",
    "seed",
    "policy",
    "sampler",
    "environment",
    "prompts",
    "rewards",
    "algorithm",
    "train",
    "evaluation",
    "tracking",
)
FIRST = ("name", "model", "path")
"""Keys that come first in their section."""
WIDTH = 98


def draft(port: Port, about: str) -> str:
    """The text of the configuration; about: what it was made of, for its first line."""
    lines = [f"# {about}"]
    for title, items in notes(port).items():
        lines += ["#", f"# {title}:"]
        lines += [line for item in items for line in _comment(item, "#   ", "#     ")]
    tree = _tree(port)
    for section in sorted(tree, key=lambda name: ORDER.index(name) if name in ORDER else 99):
        lines += ["", *_lines(section, tree[section], section, port.reasons, "")]
    return "\n".join([*lines, ""])


def notes(port: Port) -> Mapping[str, list[str]]:
    """By title what a user has to know: what has no counterpart, and what is left to do."""
    titles = {
        "Without a counterpart here": [f"{loss.what}: {loss.why}" for loss in port.losses],
        "Left to do": port.todo,
    }
    return {title: items for title, items in titles.items() if items}


def _tree(port: Port) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in port.written.items():
        *above, last = key.split(".")
        section = tree
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
    tree["rewards"] = port.rewards
    return tree


def _lines(
    name: str, value: Any, path: str, reasons: Mapping[str, str], indent: str
) -> Iterator[str]:
    if path in reasons:
        yield from _comment(reasons[path], f"{indent}# ", f"{indent}# ")
    if isinstance(value, Mapping) and value and _is_section(path):
        yield f"{indent}{name}:"
        for key in sorted(value, key=lambda key: FIRST.index(key) if key in FIRST else 99):
            yield from _lines(key, value[key], f"{path}.{key}", reasons, f"{indent}  ")
    elif name == "rewards":
        yield "rewards:"
        for number, reward in enumerate(value):
            if reason := reasons.get(f"{name}.{number}"):
                yield from _comment(reason, "# ", "# ")
            yield from write({name: [reward]}).splitlines()[1:]
    else:
        for line in write({name: value}).splitlines():
            yield f"{indent}{line}"


def _is_section(path: str) -> bool:
    """Whether keys of the mapping at this path may have comments of their own."""
    return path.count(".") < 3


def _comment(text: str, first: str, then: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=then)
