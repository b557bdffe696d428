"""Draw, look, draw again: the environment of `draw_look.yaml`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.environment import Environment, EpisodeEnded
from groupwise_verifiable.images.contents import ImageContents

RIGHT = "right"
VERIFIER = ImageContents()


class DrawLook(Environment):
    """A painter draws; eyes look, and say what is wrong; the painter draws again, from the prompt
    and these words. If they say that the picture is right, it stays.

    Rewards judge the picture in the end, and know the first one as `draft`. In training several
    looks at a draft are compared with each other.
    """

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return ["draft", "words", "again"]

    def shown(self, labels: Sequence[str]) -> Sequence[str]:
        return ["draft", "words"]

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        return ["again"]

    def judged(self, labels: Sequence[str]) -> Sequence[str]:
        return ["painter"]

    def groups(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {"painter": 1 + sizes["eyes"], "eyes": sizes["painter"]}

    async def play(self, row: Mapping[str, Any], players: Mapping[str, Any]) -> Any:
        painter, prompt = players["painter"], row["prompt"]
        draft = await painter(row)
        picture = {"type": "image", "image": draft.completion}
        question = [picture, {"type": "text", "text": prompt}]
        looks = await players["eyes"].group([{"role": "user", "content": question}])

        async def final(look: Any) -> Any:
            """The picture that follows a look; None if the painter cannot read the words."""
            words = look.text.rpartition(":")[2].strip()
            stays = words == RIGHT
            try:
                last = draft if stays else await painter(f"{prompt} {words}", after=look)
            except EpisodeEnded:
                return None
            return last, {"draft": draft.completion, "words": look.text, "again": not stays}

        pictures = filter(None, await asyncio.gather(*map(final, looks)))
        return [*{id(picture): (picture, columns) for picture, columns in pictures}.values()]


def draft(
    prompts: Sequence[str], draft: Sequence[Any], include: Sequence[Any], **_: Any
) -> Sequence[float | None]:
    """Whether the first picture is right: what the painter reaches without eyes."""
    return VERIFIER(prompts, draft, include=include)
