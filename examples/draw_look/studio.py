"""A painter draws, a looker says in words what is wrong, and the painter draws again."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from shapes import scenes

from groupwise import Environment
from groupwise_verifiable.images.contents import ImageContents

FINE = "fine"
"""What the looker says of a picture that is kept as it is."""


class Scenes(Sequence[Mapping[str, Any]]):
    """The prompts of `shapes` with two objects."""

    def __init__(self) -> None:
        self.rows = [row for row in scenes.rows() if row["tag"] == "position"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any, /) -> Any:
        return self.rows[index]


class Studio(Environment):
    """The looker's words follow the prompt of the second picture; if it says "fine", there is none.

    Both players have one reward, the verifier's value of the last picture.
    """

    class Config(BaseModel):
        """Settings of the environment."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        again: Literal["critique", "prompt"] = Field(
            "critique",
            description="what the second picture is drawn from: the prompt with the critique, or "
            "the prompt alone",
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self._judge = ImageContents(ImageContents.Config(mode="partial"))

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return ["value", "critique", "first_right", "drawn_again", "verdict_right"]

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        return ["first_right", "drawn_again", "verdict_right"]

    async def play(self, row: Mapping[str, Any], players: Mapping[str, Any]) -> Any:
        painter, looker = players["painter"], players["looker"]
        first = await painter(row)
        said = await looker(shown(first.completion, row["prompt"]))
        critique = said.text.rpartition("</think>")[2].strip()
        last = first
        if critique != FINE:
            words = f" {critique}" if self.config.again == "critique" else ""
            last = await painter(row["prompt"] + words)
        is_right = self._value(row, first) == 1
        columns = {
            "value": self._value(row, last),
            "critique": critique,
            "first_right": float(is_right),
            "drawn_again": float(last is not first),
            "verdict_right": float(is_right == (last is first)),
        }
        return [(last, columns), (said, columns)]

    def _value(self, row: Mapping[str, Any], reply: Any) -> float:
        """The share of the scene that a picture has, as the verifier sees it."""
        (value,) = self._judge([row["prompt"]], [reply.completion], include=[row["include"]])
        return value or 0.0


def shown(picture: Any, prompt: str) -> list[dict[str, Any]]:
    """What the looker reads: a picture and what it should be."""
    content = [{"type": "image", "image": picture}, {"type": "text", "text": prompt}]
    return [{"role": "user", "content": content}]


def value(value: Sequence[float], **_: Any) -> list[float]:
    """The verifier's value of the last picture, for both players."""
    return list(value)
