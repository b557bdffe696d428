"""A reward for videos whose successive frames are alike, by CLIP."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings
from groupwise_messages.frames import evenly
from groupwise_messages.video import Video


class FrameConsistency:
    """How alike the successive frames of a video are: the mean cosine of their CLIP features.

    It falls where things change into others, vanish or flicker. A video that stands still has the
    highest value, 1.0: train on it only together with `motion`. None for a video of one frame.
    """

    judges = False

    class Config(ClipSettings):
        """Settings of the reward `frame_consistency`."""

        frames: int = Field(
            default=16,
            ge=2,
            description="How many frames are compared, each with the next one, evenly spaced; all "
            "of a shorter video.",
        )

    def __init__(self, config: Config) -> None:
        self.config, self.clip = config, Clip(config)

    def load(self) -> None:
        """Loads the model, if needed."""
        self.clip.load()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]
    ) -> list[float | None]:
        """Returns a value for each video; a ValueError for a completion that is none."""
        frames = [_frames(each, row, self.config.frames) for row, each in enumerate(completions)]
        if not any(frames):
            return [None] * len(frames)
        features = self.clip.image_features([frame for own in frames for frame in own])
        values: list[float | None] = []
        for own in features.split([len(each) for each in frames]):
            cosines = (own[1:] * own[:-1]).sum(dim=1)
            values.append(float(cosines.mean()) if len(cosines) else None)
        return values


def _frames(video: Any, row: int, count: int) -> list[Any]:
    if not isinstance(video, Video):
        raise ValueError(
            f"reward 'frame_consistency', completion {row}: expected a video, found "
            f"{type(video).__name__}"
        )
    return [video[number] for number in evenly(len(video), count)] if len(video) > 1 else []
