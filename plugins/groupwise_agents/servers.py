"""Servers: connections to MCP servers, whose tools become tools of a run."""

import asyncio
import shlex
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from threading import Thread
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.kit.errors import UserError, first_line
from groupwise_agents.content import Content
from groupwise_agents.results import content_of_result
from groupwise_agents.tool import Tool, ToolError, Unavailable

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for a server to start: a command may download its package first."""


class ServerConfig(BaseModel):
    """An MCP server. A string alone is its command line, or its URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str | None = Field(
        None, description="the command line that starts it; it is spoken to by its stdin and stdout"
    )
    url: str | None = Field(None, description="the address of one that runs already")
    env: Mapping[str, str] = Field({}, description="further environment variables of the command")
    headers: Mapping[str, str] = Field({}, description="of requests to the URL")
    only: list[str] = Field([], description="names of the tools to take; all if empty")

    @model_validator(mode="before")
    @classmethod
    def _of_string(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return {"url" if value.startswith(("http://", "https://")) else "command": value}

    @model_validator(mode="after")
    def _has_one_address(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server has a `command` or a `url`: set one of them")
        return self

    @property
    def name(self) -> str:
        """For messages."""
        return self.command or self.url or ""


@dataclass(frozen=True)
class _Connection:
    """A task that holds a client until it is to end; client: once it is connected."""

    holder: asyncio.Task[None]
    client: asyncio.Future[Any]
    ended: asyncio.Event


class Server:
    """A connection to an MCP server, shared by all episodes.

    A server that is gone fails the episodes that call it; the next one connects again.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._connection: _Connection | None = None

    def tools(self) -> list[Tool]:
        """The server's tools, from a connection of its own that is closed again.

        Raises UserError if the server cannot be reached, or lacks one of `only`.
        """
        try:
            listed = _run(asyncio.wait_for(self._listed(), PATIENCE))
        except ImportError as error:
            raise UserError(
                f"MCP servers need an extra: pip install 'groupwise[agents]' ({error})"
            ) from error
        except Exception as error:
            raise UserError(
                f"MCP server {self.config.name!r} does not answer: {_reason(error)}; start it, or "
                f"correct its address under `environment.mcp`"
            ) from error
        names = [tool.name for tool in listed]
        if missing := [name for name in self.config.only if name not in names]:
            raise UserError(
                f"MCP server {self.config.name!r} has no tool {missing[0]!r}, which `only` names; "
                f"it has {', '.join(names)}"
            )
        chosen = self.config.only or names
        return [self._tool(tool) for tool in listed if tool.name in chosen]

    async def open(self) -> None:
        """Connect, unless that is done. Raises Unavailable."""
        await asyncio.shield(self._opened().client)

    async def call(self, tool: str, /, **arguments: Any) -> Content:
        """What a tool answers. Raises ToolError with the text of an error, and Unavailable."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        connection = self._opened()
        client = await asyncio.shield(connection.client)
        try:
            result = await client.call_tool(tool, arguments)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolError(str(error)) from error
            if connection is self._connection:
                await self.close()
            raise Unavailable(f"MCP server {self.config.name!r} is gone") from error
        return content_of_result(result.model_dump(mode="json"))

    async def close(self) -> None:
        """Close the connection, if it is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.ended.set()
            await asyncio.wait({connection.holder})

    def _opened(self) -> "_Connection":
        if self._connection is None or self._connection.holder.done():
            client, ended = asyncio.get_running_loop().create_future(), asyncio.Event()
            holding = self._hold(client, ended)
            holder = asyncio.create_task(holding, context=Context())  # of no episode
            self._connection = _Connection(holder, client, ended)
        return self._connection

    async def _hold(self, client: "asyncio.Future[Any]", ended: asyncio.Event) -> None:
        """Hold a connection open: its scopes must be left by the task that entered them."""
        problem = "its connection was cancelled"
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(PATIENCE):
                    opened = await self._open(stack)
                client.set_result(opened)
                await ended.wait()
        except Exception as error:
            problem = _reason(error)
        finally:
            if not client.done():
                text = f"MCP server {self.config.name!r} does not answer: {problem}"
                client.set_exception(Unavailable(text))

    def _tool(self, tool: Any) -> Tool:
        own = {"name": tool.name, "description": tool.description or ""}
        schema = {"type": "function", "function": {**own, "parameters": tool.input_schema}}
        return Tool(name=tool.name, schema=schema, function=partial(self.call, tool.name))

    async def _listed(self) -> list[Any]:
        tools, cursor = list[Any](), None
        async with AsyncExitStack() as stack:
            client = await self._open(stack)
            while True:
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    return tools

    async def _open(self, stack: AsyncExitStack) -> Any:
        """A connected client, which the stack closes."""
        from mcp import Client, StdioServerParameters, stdio_client

        if self.config.url is not None:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            own = httpx2.AsyncClient(
                headers=dict(self.config.headers),
                timeout=PATIENCE,
                trust_env=self.config.url.startswith("https:"),  # a proxy reads what is not
            )
            http = await stack.enter_async_context(own)
            transport = streamable_http_client(self.config.url, http_client=http)
            return await stack.enter_async_context(Client(transport))
        command, *arguments = shlex.split(self.config.command or "")
        parameters = StdioServerParameters(
            command=command, args=arguments, env=dict(self.config.env)
        )
        # What it writes to stderr would disturb the terminal, and a notebook's is no file.
        log = stack.enter_context(TemporaryFile("w+", errors="replace"))  # noqa: SIM115
        try:
            return await stack.enter_async_context(Client(stdio_client(parameters, errlog=log)))
        except Exception as error:
            log.seek(0)
            lines = log.read().strip().splitlines()
            raise ConnectionError(lines[-1] if lines else _reason(error)) from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own, also where one is running (in a notebook)."""
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(asyncio.run(work))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True, name="MCP").start()
    return answer.result()


def _reason(error: BaseException) -> str:
    """What went wrong, of the exceptions that a task group has wrapped."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = first_line(error)
    return text if type(error) is ConnectionError else f"{type(error).__name__}: {text}"
