"""Single: one policy that is called once for each episode."""

from collections.abc import Mapping

from groupwise.environment import Environment, Player, Row


class Single(Environment):
    """One call of one policy: the prompt of the data set, and its completion."""

    async def play(self, row: Row, players: Mapping[str, Player]) -> None:
        (player,) = players.values()
        await player(row)
