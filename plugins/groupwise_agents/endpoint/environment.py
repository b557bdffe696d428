"""Served: the environment of programs that call their model by OpenAI's interface."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise.environment import Environment, Outcome, Player
from groupwise.kit import terminal
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise_agents.endpoint.address import Address
from groupwise_agents.endpoint.session import Session

COUNTED = ("turns", "calls", "call_errors", "tool_seconds", "drifts")
"""What the endpoint counts in an episode: completions, calls of tools, those that are malformed,
the seconds in which the program did not wait for the model, and the requests in which a completion
came back changed."""


class Served(Environment):
    """Each episode is a program, whose requests to an endpoint on this machine are answered by the
    run's policies. A subclass says by `run` what the program is.

    The tokens that are trained are those that were sampled: what a program sends back is
    recognised, never encoded again.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        columns: tuple[str, ...] = Field(
            ("reward",), description="the columns that the program returns, for rewards"
        )
        drift: Literal["refuse", "new_rollout"] = Field(
            "refuse",
            description="what happens to a request that sends back a completion changed: it is "
            "refused, or begins a new rollout with the change as a part of its prompt",
        )

    def __init__(self, config: Config) -> None:
        """Raises UserError if the server's packages are not installed."""
        try:
            from groupwise_agents.endpoint.server import Endpoint
        except ImportError as error:
            raise UserError(
                f"environment: the endpoint for agents needs an extra: "
                f"pip install 'groupwise[agents]' ({error})"
            ) from error
        self.config = config
        self.endpoint = Endpoint()
        self._named: set[str] = set()

    @abstractmethod
    async def run(self, address: Address, row: Row) -> Any:
        """Run the program of an episode; returns what `outcome` reads. It is cancelled if the
        episode ends before it."""

    def outcome(self, session: Session, returned: Any) -> Outcome:
        """What `play` returns after the program returned; by default its columns, or its reward if
        it is a number."""
        match returned:
            case None:
                own: Mapping[str, Any] = {}
            case Real():
                own = {"reward": float(returned)}
            case Mapping():
                own = returned
            case _:
                raise UserError(
                    f"environment: the agent returned {type(returned).__name__}, expected columns "
                    f"for rewards (a mapping), a number (its reward), or None"
                )
        return {**session.columns, **own}

    def receivers(self, labels: Sequence[str]) -> Sequence[str]:
        return ()  # the program makes what players read

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return [*COUNTED, *self.config.columns]

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        return COUNTED

    async def play(self, row: Row, players: Mapping[str, Player]) -> Outcome:
        self.endpoint.start()
        keeps_drift = self.config.drift == "new_rollout"
        with self.endpoint.session(players, keeps_drift=keeps_drift) as (session, url):
            address = Address(url, session.key, next(iter(players)))
            returned = await session.serve(self.run(address, row))
        self._name_ignored(session.ignored)
        return self.outcome(session, returned)

    async def close(self) -> None:
        await self.endpoint.close()

    def _name_ignored(self, names: set[str]) -> None:
        """Say once of each parameter that the run does not follow it."""
        if new := sorted(names - self._named):
            self._named.update(new)
            terminal.say(
                f"warning: the agent sets {', '.join(new)}, which the run does not follow: it "
                f"samples as its policy says"
            )
