"""Chain: several policies; the completion of each is the prompt of the next."""

import asyncio
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from groupwise.environment import Columns, Environment, EpisodeEnded, Player, Reply
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row


class Chain(Environment):
    """Each policy completes what the one before wrote; rewards judge the completions of the last.

    Take it to train a model that writes prompts for another one. The texts of the policies before
    the last are columns for rewards, by label.
    """

    multi_turn = False

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        refused: Mapping[str, float] = Field(
            {},
            description="by label, the value of each reward for a completion that the next policy "
            "cannot take as its prompt (too long, say); 0 if unset",
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(labels) < 2:
            raise UserError(
                "each policy of a chain completes what the one before wrote, and there is one "
                "policy; list two or more under `players`, or leave `environment` out"
            )
        if odd := [label for label in self.config.refused if label not in labels[:-1]]:
            raise UserError(
                f"refused: expected labels of the policies before the last "
                f"({', '.join(labels[:-1])}), found {odd[0]!r}"
            )
        return super().casts(labels)

    def groups(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        counts, count = {}, 1
        for label, size in sizes.items():
            counts[label] = count
            count *= size
        return counts

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return labels[:-1]

    def shown(self, labels: Sequence[str]) -> Sequence[str]:
        return self.columns(labels)

    def judged(self, labels: Sequence[str]) -> Sequence[str]:
        return labels[-1:]

    def refused(self, label: str) -> float:
        return self.config.refused.get(label, 0.0)

    async def play(
        self, row: Row, players: Mapping[str, Player]
    ) -> Sequence[tuple[Reply, Columns]]:
        (first, opener), *later = players.items()
        try:
            reply = await opener(row)
        except EpisodeEnded:
            return []
        return await _continued(reply, first, later, {})


async def _continued(
    reply: Reply, label: str, later: Sequence[tuple[str, Player]], written: Mapping[str, str]
) -> list[tuple[Reply, Columns]]:
    """The last policies' completions that follow a reply; none where one cannot take its prompt."""
    if not later:
        return [(reply, written)]
    (following, player), *rest = later
    written = {**written, label: reply.text}
    try:
        replies = await player.group(reply)
    except EpisodeEnded:
        return []
    branches = [_continued(each, following, rest, written) for each in replies]
    return [judged for branch in await asyncio.gather(*branches) for judged in branch]
