"""EpisodePlayer: a player of one episode; see `groupwise.environment.Player`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from groupwise.environment import Context, Reply
from groupwise.record import Episode

if TYPE_CHECKING:
    from groupwise.episodes.playing import Playing


@dataclass(frozen=True)
class EpisodePlayer:
    """What `play` calls: it makes the calls of one player in one episode."""

    playing: "Playing"
    episode: Episode
    label: str

    async def __call__(self, context: Context, **options: Any) -> Reply:
        (reply,) = await self._replies(context, grouped=False, **options)
        return reply

    async def group(self, context: Context, **options: Any) -> Sequence[Reply]:
        return await self._replies(context, grouped=True, **options)

    async def shortened(self, content: Any, most: int) -> Any:
        return self.playing.samplers[self.label].shortened(content, most)

    async def _replies(self, context: Context, **options: Any) -> list[Reply]:
        return await self.playing.replies(self.episode, self.label, context, **options)
