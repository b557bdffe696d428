"""Tools of OpenEnv: an MCP environment's, whose calls are steps, and those of resource sessions."""

from collections.abc import Callable, Sequence
from typing import Any

from groupwise.environment import EpisodeEnded
from groupwise.kit.errors import UserError
from groupwise_agents.content import Content, content_of
from groupwise_agents.openenv.client import Connection
from groupwise_agents.openenv.resource import Resource
from groupwise_agents.results import content_of_result
from groupwise_agents.tool import Tool, ToolError


def schema_of(tool: Any) -> dict[str, Any]:
    """The schema that chat templates show, of an OpenEnv `Tool`."""
    parameters = tool.input_schema or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


async def listed(connection: Connection) -> Sequence[Any]:
    """The tools of an MCP environment. Raises UserError if there are none.

    Its client returns no tools where it cannot ask for them, too.
    """
    tools: Sequence[Any] = await connection.request(connection.client.list_tools)
    if not tools:
        raise UserError(
            f"environment openenv: {connection.client.base_url} lists no tools; name a function "
            f"under `action` for an environment of steps"
        )
    return tools


def tools_of_client(connection: Connection, listing: Sequence[Any]) -> list[Tool]:
    """The tools of an episode; a call is a step, so it has a reward and may end the episode."""
    return [
        Tool(name=tool.name, schema=schema_of(tool), function=_step_of(connection, tool.name))
        for tool in listing
    ]


def _step_of(connection: Connection, name: str) -> Callable[..., Any]:
    from openenv.core.env_server.mcp_types import CallToolAction

    async def call(**arguments: Any) -> Content:
        result = await connection.step(CallToolAction(tool_name=name, arguments=arguments))
        observation = result.observation
        if result.done:
            raise EpisodeEnded(name)
        error = getattr(observation, "error", None)
        if error is not None:
            raise ToolError(error.message)
        match getattr(observation, "result", observation):
            case {"content": [*_], "data": None} as result:  # a tool without a type of its results
                return content_of_result(result)
            case {"data": value} | value:
                return content_of(value)

    return call


def tools_of_session(resource: Resource) -> list[Tool]:
    """The tools of an OpenEnv ResourceSession; the rewards that their results state are kept."""
    session = resource.session

    def call_of(name: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Content:
            result = await resource.call(lambda: session.call_tool(name, arguments), f"tool {name}")
            stated = result.metadata.get("reward")
            if stated is None and isinstance(result.data, dict):
                stated = result.data.get("reward")
            resource.rewards.append(None if stated is None else float(stated))
            if result.done:
                raise EpisodeEnded(name)
            if result.error is not None:
                raise ToolError(result.error)
            return content_of(result.data)

        return call

    return [
        Tool(name=tool.name, schema=schema_of(tool), function=call_of(tool.name))
        for tool in session.list_tools()
    ]
