"""Agent: an environment in which a program of one's own calls the model by OpenAI's interface."""

from collections.abc import Callable
from typing import Any

from pydantic import Field, model_validator

from groupwise.prompt_source import Row
from groupwise.registry import import_target
from groupwise_agents.endpoint.address import Address
from groupwise_agents.endpoint.environment import Served
from groupwise_agents.endpoint.programs import Command, Function


class Agent(Served):
    """An unmodified agent: a function or a command that calls its model by OpenAI's interface.

    Take it to train a model within the program that uses it.
    """

    class Config(Served.Config):
        run: str | None = Field(
            None, description="the agent: a function, sync or async, as `module:function`"
        )
        command: tuple[str, ...] | None = Field(
            None, min_length=1, description="or the agent as a command: a program and its arguments"
        )

        @model_validator(mode="after")
        def _one_agent(self) -> "Agent.Config":
            if (self.run is None) == (self.command is None):
                raise ValueError("set `run` or `command`, and not both")
            return self

    def __init__(self, agent: Config | Callable[..., Any], **options: Any) -> None:
        """agent: in Python the function itself, and the other options as keywords."""
        if isinstance(agent, Agent.Config):
            super().__init__(agent)
        else:
            super().__init__(Served.Config(**options))
        self.program = _program(agent)

    async def run(self, address: Address, row: Row) -> Any:
        return await self.program(address, row)


def _program(agent: Agent.Config | Callable[..., Any]) -> Function | Command:
    if not isinstance(agent, Agent.Config):
        return Function(agent)
    if agent.command is not None:
        return Command(agent.command)
    assert agent.run is not None
    return Function(import_target(agent.run, "environment.run"))
