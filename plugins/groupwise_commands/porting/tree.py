"""tree: nested settings of YAML as dotted names, with references such as `${a.b}` resolved."""

import re
from collections.abc import Mapping
from typing import Any

from groupwise.errors import UserError
from groupwise_commands.porting.settings import Unread

REFERENCE = re.compile(r"\$\{([^${}]+)\}")
ENVIRONMENT, SELECTED = "oc.env:", "oc.select:"
DEEPEST = 20
"""The most references behind each other."""
LONGEST = 10_000
"""Characters of a value with references, of which each may stand for several others."""


def flat(data: Any, source: str, expected: str) -> tuple[dict[str, Any], dict[str, Unread]]:
    """(values by dotted name, those that cannot be known) of nested mappings.

    A reference is resolved as OmegaConf does: to another key, to a default of a variable of the
    environment, which is not read, or of a key that is not there. Raises UserError if `data` is no
    mapping of names.
    """
    if not isinstance(data, Mapping) or not data:
        raise UserError(f"{source}: expected {expected}, found no keys")
    values = dict(_leaves(data, ""))
    known: dict[str, Any] = {}
    unread: dict[str, Unread] = {}
    for name, value in values.items():
        try:
            resolved = _resolved(value, name, values, data, 0)
        except LookupError:
            unread[name] = Unread(source=str(value))
            continue
        if isinstance(resolved, Mapping):
            known |= dict(_leaves(resolved, f"{name}."))
        else:
            known[name] = resolved
    return known, unread


def _leaves(data: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and value
        leaves += _leaves(value, f"{name}.") if nested else [(name, value)]
    return leaves


def _resolved(
    value: Any, name: str, values: Mapping[str, Any], data: Mapping[str, Any], depth: int
) -> Any:
    """Raises LookupError for a reference to something unknown."""
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > DEEPEST or len(value) > LONGEST:
        raise LookupError
    whole = REFERENCE.fullmatch(value)
    if whole:
        target = _referred(whole[1], name, values, data)
        return _resolved(target, name, values, data, depth + 1)
    replaced = REFERENCE.sub(lambda match: str(_referred(match[1], name, values, data)), value)
    if replaced == value:
        raise LookupError
    return _resolved(replaced, name, values, data, depth + 1)


def _referred(reference: str, name: str, values: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    for resolver in (ENVIRONMENT, SELECTED):
        if reference.startswith(resolver):
            key, comma, default = reference.removeprefix(resolver).partition(",")
            if resolver == SELECTED and key in values:
                return values[key]
            if not comma:
                raise LookupError
            return None if default.strip() == "null" else default.strip()
    key = reference
    if key.startswith("."):  # one dot is this section, another one the section above
        dots = len(key) - len(key.lstrip("."))
        above = name.split(".")[:-dots]
        key = ".".join([*above, key.lstrip(".")])
    if key in values:
        return values[key]
    section: Any = data
    for part in key.split("."):
        if not isinstance(section, Mapping):
            raise LookupError(reference)
        section = section[part]
    return section
