"""Schema: which values the JSON schema of a tool allows for an argument."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


@dataclass(frozen=True)
class _Argument:
    """The part of a call's arguments that is checked: one of them."""

    name: str
    value: Any


@dataclass(frozen=True)
class Schema:
    """The JSON schema of a tool's arguments.

    Read of it are types, constants and choices, and references within it; a keyword that is not
    read, or not as it should be, forbids nothing. What is inside of a value is not looked at.
    """

    root: Any

    def allows(self, name: str, value: Any) -> bool:
        """Whether the argument of this name may have this value."""
        return self._allows(self.root, _Argument(name, value), {})

    def _allows(self, schema: Any, value: Any, known: dict[str, bool]) -> bool:
        """known: what references say about this value."""
        if not isinstance(schema, Mapping):
            return schema is not False
        if value is None and schema.get("nullable") is True:  # OpenAPI's, and transformers'
            return True
        return all(self._holds(name, schema, value, known) for name in schema)

    def _holds(
        self, keyword: str, schema: Mapping[str, Any], value: Any, known: dict[str, bool]
    ) -> bool:
        match keyword, schema[keyword]:
            case "$ref", str(reference):
                return self._referred(reference, value, known)
            case "allOf", [*parts]:
                return all(self._allows(part, value, known) for part in parts)
            case "anyOf" | "oneOf", [*parts]:
                return any(self._allows(part, value, known) for part in parts)
            case "properties", Mapping() as own if isinstance(value, _Argument):
                return self._allows(own.get(value.name), value.value, {})
            case "additionalProperties", own if isinstance(value, _Argument):
                named = schema.get("properties")
                is_named = isinstance(named, Mapping) and value.name in named
                return is_named or self._allows(own, value.value, {})
        return isinstance(value, _Argument) or _fits(keyword, schema[keyword], value)

    def _referred(self, reference: str, value: Any, known: dict[str, bool]) -> bool:
        if reference not in known:
            known[reference] = True  # while it is looked up: it may refer to itself
            known[reference] = self._allows(self._target(reference), value, known)
        return known[reference]

    def _target(self, reference: str) -> Any:
        """What a JSON pointer (RFC 6901) points to; None if that is nothing in this schema."""
        target = self.root if reference.startswith("#") else None
        for part in reference.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        return target


def _fits(keyword: str, own: Any, value: Any) -> bool:
    match keyword, own:
        case "type", str():
            return _is(own, value)
        case "type", [*names]:
            return any(_is(name, value) for name in names)
        case "enum", [*choices]:
            return any(_same(choice, value) for choice in choices)
        case "const", _:
            return _same(own, value)
    return True


def _is(name: Any, value: Any) -> bool:
    types = TYPES.get(name) if isinstance(name, str) else None
    if types is None:
        return True
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; in Python True equals 1, too."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
