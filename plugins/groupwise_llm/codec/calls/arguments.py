"""Arguments of calls that are written as text: their values, by the tool's schema."""

from collections.abc import Iterable
from typing import Any

from groupwise.kit import foreign_json
from groupwise_llm.codec.calls.format import Tools
from groupwise_llm.codec.calls.schema import Schema

PYTHON = {"True": True, "False": False, "None": None}
"""What templates write for these values by Jinja's filter `string`."""


def typed(name: str, arguments: Iterable[tuple[str, str]], tools: Tools) -> dict[str, Any]:
    """The arguments of a call of this tool, from (name, text) pairs."""
    schema = _schema(name, tools)
    return {key: _value(key, text, schema) for key, text in arguments}


def _schema(name: str, tools: Tools) -> Schema:
    """That of a tool's arguments; one that allows anything if it has none, or was not shown."""
    for tool in tools:
        match tool.get("function", tool):
            case {"name": own, "parameters": parameters} if own == name:
                return Schema(parameters)
    return Schema(None)


def _value(key: str, text: str, schema: Schema) -> Any:
    """The value that the text is as JSON, or the text itself: the first that the schema allows. One
    in quotes is a text with quotes, where that is allowed."""
    try:
        value = (
            PYTHON[text] if text in PYTHON else foreign_json.read(text, parse_constant=_no_number)
        )
    except ValueError:
        return text
    values = (text, value) if isinstance(value, str) else (value, text)
    return next((own for own in values if schema.allows(key, own)), value)


def _no_number(name: str) -> None:
    """NaN and Infinity are no JSON, though Python reads them."""
    raise ValueError(name)
