"""Tools: an environment in which the model may call functions and tools of MCP servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field

from groupwise.environment import Environment, Player
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.registry import import_target
from groupwise_agents.conversation import COLUMNS, converse, messages_of
from groupwise_agents.limits import Limits
from groupwise_agents.ordered import OrderedToolbox
from groupwise_agents.python import Interpreter, PythonConfig
from groupwise_agents.search import Passages, SearchConfig
from groupwise_agents.servers import Server, ServerConfig
from groupwise_agents.tool import Tool
from groupwise_agents.toolbox import Toolbox


class Tools(Environment):
    """One policy that may call tools and reads their answers, until it answers without a call.

    Take it to train a model to use functions, MCP servers and a search.
    """

    class Config(Limits):
        tools: list[str] = Field([], description="functions, as `module:function`")
        mcp: list[ServerConfig] = Field(
            [],
            description="MCP servers, whose tools are added: of each its command line, its URL, "
            "or a mapping of its options",
        )
        search: SearchConfig | None = Field(
            None, description="a folder of texts, which the tool `search` finds passages of"
        )
        python: PythonConfig | None = Field(
            None,
            description="the tool `python`: code that runs in a sandbox, and whose names stay for "
            "the episode's later calls; `{}` takes its defaults",
        )

    def __init__(self, tools: Config | Sequence[Tool | Callable[..., Any]], **options: Any) -> None:
        if isinstance(tools, Tools.Config):
            self.config = tools
            tools = [_function(name) for name in tools.tools]
        else:
            self.config = self.Config(**options)
        if self.config.search is not None:
            tools = [*tools, Passages(self.config.search).search]
        self.servers = [Server(each) for each in self.config.mcp]
        tools = [*tools, *(tool for server in self.servers for tool in server.tools())]
        own = self.config.python
        self._python = None if own is None else Interpreter(own)
        if not tools and own is None:
            raise UserError(
                "there are no tools; name functions under `tools`, servers under `mcp`, a folder "
                "under `search`, or set `python`"
            )
        self._tools = tools
        self.toolbox = self._opened()

    def _opened(self) -> Toolbox:
        """The tools of an episode."""
        if self._python is None:
            return Toolbox(self._tools, deadline=self.config.deadline)
        own = self._python.begun().python
        return OrderedToolbox([*self._tools, own], deadline=self.config.deadline)

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(labels) > 1:
            raise UserError(f"one policy calls the tools, and there are {len(labels)} players")
        return super().casts(labels)

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return COLUMNS

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        return COLUMNS

    def opening(self, row: Row) -> Row:
        return {**row, "prompt": messages_of(row), "tools": self.toolbox.schemas}

    async def play(self, row: Row, players: Mapping[str, Player]) -> Mapping[str, Any]:
        (player,) = players.values()
        for server in self.servers:
            await server.open()  # before the deadline of a call begins
        toolbox = self.toolbox if self._python is None else self._opened()
        talk = await converse(player, messages_of(row), toolbox, self.config)
        return talk.outcome

    async def close(self) -> None:
        for server in self.servers:
            await server.close()
        if self._python is not None:
            self._python.close()


def _function(name: str) -> Callable[..., Any]:
    """What `module:function` names. Raises UserError if there is no such function."""
    if ":" not in name:
        raise UserError(f"tools: expected module:function, found {name!r}")
    return import_target(name, f"tool {name!r}")
