"""Single: one policy that is called once for each episode."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from groupwise.environment import Environment, Player
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row


class Single(Environment):
    """One call of one policy: the prompt of the data set, and its completion."""

    one_call = True
    multi_turn = False

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(labels) > 1:
            raise UserError(
                f"one policy is called in an episode, and there are {len(labels)} players; `pool` "
                f"and `chain` call several"
            )
        return super().casts(labels)

    async def play(self, row: Row, players: Mapping[str, Player]) -> None:
        (player,) = players.values()
        await player(row)
