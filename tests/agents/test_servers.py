"""Tools of MCP servers: a real server, started by its command and spoken to by its stdin."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from groupwise import ToolCall
from groupwise.kit.errors import UserError
from groupwise_agents.results import content_of_result
from groupwise_agents.servers import Server, ServerConfig
from groupwise_agents.tool import ToolError, Unavailable
from groupwise_agents.tools import Tools

pytest.importorskip("mcp")

COMMAND = f"{sys.executable} {Path(__file__).with_name('mcp_server.py')}"


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def server(tmp_path):
    """Options of the server, and the processes that were started."""
    log = tmp_path / "started"
    options = {"command": COMMAND, "env": {"STARTED": str(log), "WORD": "there"}}
    return options, lambda: [*map(int, log.read_text().split())]


@pytest.mark.slow
def test_tools_of_a_server(server):
    options, processes = server
    tools = Tools(
        [], mcp=[{**options, "only": ["leave", "double", "variable", "picture", "facts"]}]
    )
    names = [schema["function"]["name"] for schema in tools.toolbox.schemas]
    assert names == ["double", "variable", "picture", "facts", "leave"]
    double = tools.toolbox.schemas[0]["function"]
    assert double["description"] == "Twice a number."
    assert double["parameters"]["properties"]["number"]["type"] == "integer"
    assert not is_running(*processes())  # listing has a connection of its own

    async def play():
        try:
            first = await tools.toolbox.answers(
                [
                    ToolCall("double", {"number": 21}),
                    ToolCall("variable", {"name": "WORD"}),
                    ToolCall("double", {"number": "many"}),
                ]
            )
            seen = await tools.toolbox.answers([ToolCall("picture"), ToolCall("facts")])
            shared = await tools.toolbox.answers([ToolCall("double", {"number": 1})] * 2)
            with pytest.raises(Unavailable, match="is gone"):
                await tools.toolbox.answers([ToolCall("leave")])
            again = await tools.toolbox.answers([ToolCall("double", {"number": 2})])
        finally:
            await tools.close()
        return first, seen, shared, again

    first, seen, shared, again = asyncio.run(play())
    text, picture = seen.messages[0]["content"]
    assert text == {"type": "text", "text": "here"}
    assert picture == {"type": "image", "image": "data:image/png;base64,iVBORw0KGgo="}
    assert json.loads(seen.messages[1]["content"]) == {"city": "Rome"}
    assert [message["content"] for message in first.messages[:2]] == ["42", "there"]
    assert first.messages[2]["content"].startswith("error: double: ")
    assert first.errors == 1
    assert [message["content"] for message in (*shared.messages, *again.messages)] == [
        "2",
        "2",
        "4",
    ]
    listed, connected, again = processes()
    assert not any(map(is_running, (listed, connected, again)))


LINK = {"type": "resource_link", "name": "log", "uri": "file:///log.txt"}
DATA = {"data": "iVBORw0KGgo=", "mime_type": "audio/wav"}
BLOB = {"uri": "x://pixel", "blob": "iVBORw0KGgo="}
PICTURE = {"type": "image", "image": "data:image/png;base64,iVBORw0KGgo="}
TEXT = {"type": "resource", "resource": {"uri": "x://poem", "text": "Roses are red."}}


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"content": [{**LINK, "description": "of today"}]}, {**LINK, "description": "of today"}),
        ({"content": [TEXT, {"type": "text", "text": "Ä."}]}, "Roses are red.\nÄ."),
        (
            {"content": [{"type": "resource", "resource": {**BLOB, "mime_type": "image/png"}}]},
            [PICTURE],
        ),
        (
            {"content": [TEXT, {"type": "image", **DATA, "mime_type": "image/png"}]},
            [{"type": "text", "text": "Roses are red."}, PICTURE],
        ),
        ({"content": [{"type": "audio", **DATA}]}, {"type": "audio", "mime_type": "audio/wav"}),
        (
            {
                "content": [
                    {"type": "resource", "resource": {**BLOB, "mime_type": "application/pdf"}}
                ]
            },
            {"type": "resource", "resource": {"uri": "x://pixel", "mime_type": "application/pdf"}},
        ),
        ({"content": [], "structured_content": {"city": "Köln"}}, {"city": "Köln"}),
        ({"content": [], "structured_content": []}, []),
        ({"content": [TEXT], "structured_content": {"a": 1}}, "Roses are red."),
        ({"content": []}, ""),
    ],
)
def test_a_model_reads_every_part_of_a_result(result, content):
    from mcp.types import CallToolResult

    def read(**others):
        own = CallToolResult.model_validate({**result, **others}, by_name=True)
        return content_of_result(own.model_dump(mode="json"))

    text = read()
    assert (json.loads(text) if isinstance(content, dict) or content == [] else text) == content
    with pytest.raises(ToolError) as error:
        read(is_error=True)
    if isinstance(text, str):
        assert str(error.value) == (text or "it failed, and does not say why")


def test_a_tool_that_the_server_lacks(server):
    options, _ = server
    with pytest.raises(UserError, match="has no tool 'triple', which `only` names; it has double"):
        Tools([], mcp=[{**options, "only": ["triple"]}])


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ("no-such-command --now", "'no-such-command --now' does not answer: FileNotFoundError"),
        (f"{sys.executable} -c 'import nowhere'", "No module named 'nowhere'; start it"),
        ("http://127.0.0.1:9/mcp", "'http://127.0.0.1:9/mcp' does not answer"),
    ],
)
def test_a_server_that_is_away(server, reason):
    with pytest.raises(UserError, match="MCP server") as error:
        Tools([], mcp=[server])
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_the_headers_of_a_server_pass_no_proxy(monkeypatch):
    sent = []

    class Recorded(BaseHTTPRequestHandler):
        def do_POST(self):
            sent.append((self.path, self.headers["Authorization"]))
            self.send_error(503)

        def log_message(self, *_):
            pass

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Recorded) as recorded:
        Thread(target=recorded.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{recorded.server_port}/mcp"
        with pytest.raises(UserError, match="does not answer"):
            Server(ServerConfig(url=url, headers={"Authorization": "Bearer secret"})).tools()
        recorded.shutdown()
    assert set(sent) == {("/mcp", "Bearer secret")}


def test_a_server_has_one_address():
    with pytest.raises(ValueError, match="a `command` or a `url`"):
        Tools([], mcp=[{"command": "uvx some-server", "url": "http://127.0.0.1/mcp"}])


def test_a_connection_is_of_no_episode_and_may_be_cancelled(monkeypatch):
    episode, opening = ContextVar("episode", default=None), []

    @asynccontextmanager
    async def never(*_, **__):
        opening.append((asyncio.current_task(), episode.get()))
        yield await asyncio.Event().wait()

    async def cancelled():
        episode.set("first")
        server = Server(ServerConfig(command="some-server"))
        waiting = asyncio.create_task(server.open())
        while not opening:
            await asyncio.sleep(0)
        ((holder, of),) = opening
        assert of is None
        holder.cancel()
        await asyncio.wait_for(waiting, 10)

    monkeypatch.setattr("mcp.stdio_client", never)
    with pytest.raises(Unavailable, match=r"'some-server' does not answer: .* cancelled"):
        asyncio.run(cancelled())
