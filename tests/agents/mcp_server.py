"""An MCP server of the tests, spoken to by stdin and stdout."""

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent

server = MCPServer("of the tests")


@server.tool()
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@server.tool()
def variable(name: str) -> str:
    """The value of an environment variable."""
    return os.environ[name]


@server.tool()
def picture() -> list[TextContent | ImageContent]:
    """A picture of nothing, with a word."""
    data = ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png")
    return [TextContent(type="text", text="here"), data]


@server.tool()
def facts() -> CallToolResult:
    """Facts that are no text."""
    return CallToolResult(content=[], structured_content={"city": "Rome"})


@server.tool()
def unused() -> None:
    """Nothing."""


@server.tool()
def leave() -> None:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    started = Path(os.environ.get("STARTED", os.devnull))
    with started.open("a") as file:
        file.write(f"{os.getpid()}\n")
    server.run()
