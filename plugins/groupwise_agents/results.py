"""Results: what a tool of an MCP server answers, as the content of a message."""

import json
from collections.abc import Mapping
from typing import Any

from groupwise_agents.content import Content, Part, of_parts
from groupwise_agents.tool import ToolError

FOR_PROGRAMS = ("annotations", "meta", "icons", "data", "blob")
"""Fields of parts that say nothing to a model, or are bytes."""


def content_of_result(result: Mapping[str, Any]) -> Content:
    """What a model reads of a result: `mcp.types.CallToolResult`, as a mapping.

    Text and embedded text as they are; pictures as parts; of a link, and of bytes that are no
    picture, what describes them, as JSON. A result without parts is its structured content as JSON.
    Raises ToolError with the text of one that is an error.
    """
    parts = [*map(_part, result["content"])]
    structured = result.get("structured_content")
    if not parts and structured is not None:
        parts = [json.dumps(structured, ensure_ascii=False)]
    texts = [part for part in parts if isinstance(part, str)]
    if result.get("is_error"):
        raise ToolError("\n".join(texts) or "it failed, and does not say why")
    return "\n".join(texts) if len(texts) == len(parts) else of_parts(parts)


def _part(part: Mapping[str, Any]) -> str | Part:
    match part:
        case {"text": str(text)} | {"resource": {"text": str(text)}}:
            return text
        case {"data": str(data)} | {"resource": {"blob": str(data)}}:
            held = part.get("resource", part)
            kind = str(held.get("mime_type") or held.get("mimeType"))  # 2 and 1 of Python's SDK
            if kind.startswith("image/"):
                return {"type": "image", "image": f"data:{kind};base64,{data}"}  # base64 by MCP
    return json.dumps(_described(part), ensure_ascii=False)


def _described(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    shown = {name: own for name, own in value.items() if name not in FOR_PROGRAMS}
    return {name: _described(own) for name, own in shown.items() if own is not None}
