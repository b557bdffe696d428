"""Arguments of calls that are written as text: their values, by the tool's schema."""

from collections.abc import Iterable, Mapping
from typing import Any

from groupwise import foreign_json
from groupwise_llm.codec.calls.format import Tools

PYTHON = {"True": True, "False": False, "None": None}
"""What templates write for these values by Jinja's filter `string`."""


def typed(name: str, arguments: Iterable[tuple[str, str]], tools: Tools) -> dict[str, Any]:
    """The arguments of a call of this tool, from (name, text) pairs."""
    properties = _properties(name, tools)
    return {key: _value(text, properties.get(key)) for key, text in arguments}


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    """The schemas of a tool's arguments; {} if it has none, or was not shown."""
    for tool in tools:
        match tool.get("function", tool):
            case {"name": own, "parameters": {"properties": Mapping() as properties}} if (
                own == name
            ):
                return properties
    return {}


def _value(text: str, schema: Any) -> Any:
    """A text stays one where the schema says so, or where it is no JSON."""
    if _types(schema) == {"string"}:
        return text
    if text in PYTHON:
        return PYTHON[text]
    try:
        return foreign_json.read(text)
    except ValueError:
        return text


def _types(schema: Any) -> set[str]:
    match schema:
        case {"type": str(name)}:
            return {name}
        case {"type": [*names]}:
            return {*map(str, names)}
        case {"anyOf": [*choices]} | {"oneOf": [*choices]}:
            return set().union(*map(_types, choices))
    return set()
