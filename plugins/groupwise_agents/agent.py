"""Agent: an environment in which a program of one's own calls the model by OpenAI's interface."""

import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.environment import Environment, Player
from groupwise.errors import UserError
from groupwise.prompt_source import Row
from groupwise.registry import import_target
from groupwise_agents.endpoint.programs import Address, Command, Function, Program

if TYPE_CHECKING:
    from groupwise_agents.endpoint.server import Endpoint

COLUMNS = ("turns", "calls", "call_errors", "tool_seconds", "drifts")
"""What the endpoint counts in an episode: completions, calls of tools, those that are malformed,
the seconds in which the agent did not wait for the model, and the requests in which a completion
came back changed."""


class Agent(Environment):
    """An agent that calls its model by OpenAI's interface, unmodified: the run's policy answers it.

    Take it to train a model within the program that uses it. The tokens that are trained are those
    that were sampled: what the agent sends back is recognised, never encoded again.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        run: str | None = Field(
            None, description="the agent: a function, sync or async, as `module:function`"
        )
        command: tuple[str, ...] | None = Field(
            None,
            min_length=1,
            description="the agent: a program with its arguments; in place of `run`",
        )
        columns: tuple[str, ...] = Field(
            ("reward",), description="the names of the columns that the agent returns, for rewards"
        )
        deadline: float = Field(
            600.0,
            gt=0,
            description="seconds that an episode's agent may take, besides those in which it waits "
            "for the model; then the episode fails",
        )
        drift: Literal["refuse", "new_rollout"] = Field(
            "refuse",
            description="what happens to a request that sends back a completion changed: it is "
            "refused, or begins a new rollout with the change as a part of its prompt",
        )

        @model_validator(mode="after")
        def _one_agent(self) -> "Agent.Config":
            if (self.run is None) == (self.command is None):
                raise ValueError("set `run` or `command`, and not both")
            return self

    def __init__(self, agent: Config | Callable[..., Any], **options: Any) -> None:
        """agent: the function, in Python; then the options are keywords."""
        if isinstance(agent, Agent.Config):
            self.config = agent
        else:
            self.config = self.Config(run=getattr(agent, "__qualname__", "agent"), **options)
        self.program = self._program(agent)
        self.endpoint = _endpoint()
        self._named: set[str] = set()

    def _program(self, agent: Config | Callable[..., Any]) -> Program:
        if not isinstance(agent, Agent.Config):
            return Function(agent)
        if agent.command is not None:
            return Command(agent.command)
        assert agent.run is not None
        return Function(import_target(agent.run, "environment.run", extra=None))

    def receivers(self, labels: Sequence[str]) -> Sequence[str]:
        return ()  # what a prompt becomes is the agent's affair

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return [*COLUMNS, *self.config.columns]

    async def play(self, row: Row, players: Mapping[str, Player]) -> Mapping[str, Any]:
        self.endpoint.start()
        with self.endpoint.session(
            players, deadline=self.config.deadline, keeps_drift=self.config.drift == "new_rollout"
        ) as (session, url):
            address = Address(url, session.key, next(iter(players)))
            returned = await session.serve(self.program(address, row))
        self._name_ignored(session.ignored)
        return {**session.columns, **_columns(returned)}

    async def close(self) -> None:
        await self.endpoint.close()

    def _name_ignored(self, names: set[str]) -> None:
        """Say once of each parameter that the run does not follow it."""
        if new := sorted(names - self._named):
            self._named.update(new)
            print(
                f"warning: the agent sets {', '.join(new)}, which the run does not follow: it "
                f"samples as its policy says",
                file=sys.stderr,
                flush=True,
            )


def _endpoint() -> "Endpoint":
    try:
        from groupwise_agents.endpoint.server import Endpoint
    except ImportError as error:
        raise UserError(
            f"environment: the agent's endpoint needs an extra: pip install 'groupwise[agents]' "
            f"({error})"
        ) from error
    return Endpoint()


def _columns(returned: Any) -> Mapping[str, Any]:
    """The columns that an agent returned; a number is its reward."""
    match returned:
        case None:
            return {}
        case Real():
            return {"reward": float(returned)}
        case Mapping():
            return returned
    raise UserError(
        f"environment: the agent returned {type(returned).__name__}, expected columns for rewards "
        f"(a mapping), a number (its reward), or None"
    )
