"""OpenEnv: episodes with an OpenEnv server, by steps or by tools."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field, model_validator

from groupwise.environment import Environment, Player
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.registry import import_target
from groupwise_agents.beginnings import Beginnings
from groupwise_agents.conversation import COLUMNS, Conversation, converse, messages_of
from groupwise_agents.limits import Limits
from groupwise_agents.openenv.client import Clients, Connection
from groupwise_agents.openenv.sessions import play_session
from groupwise_agents.openenv.steps import play_steps
from groupwise_agents.openenv.text import text_of_observation, with_observation
from groupwise_agents.openenv.tools import listed, schema_of, tools_of_client
from groupwise_agents.ordered import OrderedToolbox
from groupwise_agents.tool import Unavailable

GENERIC, MCP = "GenericEnvClient", "MCPToolClient"


class OpenEnv(Environment):
    """Episodes with an OpenEnv server, each with a connection, and so a session, of its own.

    Take it to train on an environment that runs behind a server. With `action` each completion is a
    step of the environment; without it the server's MCP tools are called; with `sessions` an
    episode is a ResourceSession. The rewards of all steps together are the column `reward`, which
    the reward `environment_reward` reads.
    """

    class Config(Limits):
        base_url: str | None = Field(None, description="where the server runs")
        client: str | None = Field(
            None,
            description="an EnvClient, as `module:Class`; by default openenv's GenericEnvClient, "
            "or its MCPToolClient without `action`",
        )
        options: dict[str, Any] = Field({}, description="further arguments of the client")
        action: str | None = Field(
            None, description="a function from a completion's text to an action, `module:function`"
        )
        observation: str | None = Field(
            None, description="a function from an observation to text; by default its own text"
        )
        reset: list[str] = Field(
            [], description="columns of a row that `reset` receives, beside `seed`"
        )
        sessions: str | None = Field(
            None, description="a ResourceSessionFactory, or what makes one, as `module:Class`"
        )

        @model_validator(mode="after")
        def _one_way(self) -> "OpenEnv.Config":
            if self.sessions is None and self.base_url is None:
                raise ValueError("it needs `base_url`, where the server runs, or `sessions`")
            if self.sessions is not None and (self.action or self.client):
                raise ValueError("`sessions` need neither `action` nor `client`")
            return self

    def __init__(
        self,
        config: Config | Callable[[], Any] | None = None,
        *,
        action: Callable[[str], Any] | None = None,
        observation: Callable[[Any], str] | None = None,
        sessions: Any = None,
        reset: Sequence[str] = (),
        **limits: Any,
    ) -> None:
        """config: in Python a function that makes a client, unless there are `sessions`."""
        if isinstance(config, OpenEnv.Config):
            self.limits: Limits = config
            reset, client = config.reset, _client(config)
            action, observation = _imported(config.action), _imported(config.observation)
            sessions = _imported(config.sessions)
        else:
            self.limits, client = Limits(**limits), config
        self.action, self.observation = action, observation or text_of_observation
        self.reset = tuple(reset)
        is_made = isinstance(sessions, type) or not hasattr(sessions, "create")
        self.sessions = sessions() if sessions and is_made else sessions
        self.clients = Clients(client, self.limits.deadline) if client else None
        self.listing: Sequence[Any] = ()
        if self.clients is not None:
            self.listing = self.clients.check(None if action else listed)
        elif self.sessions is None:
            raise UserError("environment openenv: expected a client, or `sessions`")
        advice = "its `reset` must take the argument `seed` and depend on nothing else"
        self._beginnings = Beginnings("openenv", advice)

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(labels) > 1:
            raise UserError(f"one policy acts, and there are {len(labels)} players")
        return super().casts(labels)

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return [*COLUMNS, "reward"]

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        return COLUMNS

    def opening(self, row: Row) -> Row:
        schemas = [schema_of(tool) for tool in self.listing]
        return {**row, "prompt": messages_of(row), **({"tools": schemas} if schemas else {})}

    async def play(
        self, row: Row, players: Mapping[str, Player], seed: int = 0
    ) -> Mapping[str, Any]:
        (player,) = players.values()
        if self.clients is None:
            talk, reward = await play_session(self.sessions, row, player, self.limits, seed)
            return {**talk.outcome, "reward": reward}
        missing = [name for name in self.reset if name not in row]
        if missing:
            raise UserError(
                f"environment openenv: `reset` names the column {missing[0]!r}, which the rows do "
                f"not have"
            )
        options = {"seed": seed, **{name: row[name] for name in self.reset}}
        async with self.clients.episode(options) as connection:
            talk = await self._played(connection, row, player, seed)
            if connection.is_lost:
                raise Unavailable("the session was lost")
            return {**talk.outcome, "reward": connection.reward}

    async def _played(
        self, connection: Connection, row: Row, player: Player, seed: int
    ) -> Conversation:
        begun = self.observation(connection.begun.observation)
        self._beginnings.observe(seed, {"observation": begun})
        messages = with_observation([*messages_of(row)], begun)
        if self.action is not None:
            return await play_steps(
                player,
                messages,
                connection,
                self.limits,
                action=self.action,
                observation=self.observation,
            )
        tools = tools_of_client(connection, self.listing)
        toolbox = OrderedToolbox(tools, deadline=self.limits.deadline)
        return await converse(player, messages, toolbox, self.limits)

    async def close(self) -> None:
        if self.clients is not None:
            await self.clients.close()


def _client(config: OpenEnv.Config) -> Callable[[], Any] | None:
    """What makes a client; None for sessions. Raises UserError if openenv, or the class, cannot be
    imported."""
    if config.sessions is not None:
        return None
    name = config.client or f"openenv.core:{GENERIC if config.action else MCP}"
    return partial(_imported(name), base_url=config.base_url, **config.options)


def _imported(name: str | None) -> Any:
    if name is None:
        return None
    try:
        return import_target(name, f"environment openenv: {name!r}")
    except UserError as error:
        if name.startswith("openenv."):
            advice = "it needs a package: pip install openenv"
            raise UserError(f"environment openenv: {advice} ({error})") from error
        raise
