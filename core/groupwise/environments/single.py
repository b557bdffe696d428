"""Single: one policy that is called once for each episode."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from groupwise.environment import Environment, Player
from groupwise.prompt_source import Row


class Single(Environment):
    """One call of one policy: the prompt of the data set, and its completion."""

    goes_on = False

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    async def play(self, row: Row, players: Mapping[str, Player]) -> None:
        (player,) = players.values()
        await player(row)
