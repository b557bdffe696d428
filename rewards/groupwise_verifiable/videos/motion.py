"""Rewards for videos that move, and that move steadily, by optical flow."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_messages.video import Video
from groupwise_verifiable.videos.flow import flows, speed, steadiness


class Motion:
    """How much a video moves: the speed of its fastest pixels, 0.0 still to 1.0 at `enough`.

    Of the fastest twentieth, as in VBench's dynamic degree (arXiv:2311.17982), by optical flow,
    which counts where it explains the next frame: flicker and noise are not motion. None for a
    video of one frame.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `motion`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        enough: float = Field(
            default=0.2,
            gt=0,
            allow_inf_nan=False,
            description="Speed from which more is not better, in shares of the longer side per "
            "second; VBench calls a video dynamic from some 0.19.",
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each video; a ValueError for anything else."""
        speeds = [speed(_video(each, n, "motion")) for n, each in enumerate(completions)]
        return [None if own is None else min(1.0, own / self.config.enough) for own in speeds]


class Smoothness:
    """How steadily a video moves: the share of what changes that goes on as it moved, 0.0 to 1.0.

    Jumps, flicker, and motion to and fro lower it. A still video has nothing that goes on, and gets
    0.0; it does not say how much moves, so pair it with `motion`. None below three frames.
    """

    judges = False

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each video; a ValueError for anything else."""
        videos = [_video(each, number, "smoothness") for number, each in enumerate(completions)]
        return [steadiness(flows(each.pixels)) if len(each) > 2 else None for each in videos]


def _video(value: Any, index: int, reward: str) -> Video:
    if not isinstance(value, Video):
        raise ValueError(
            f"reward {reward!r}, completion {index}: expected a video, found {type(value).__name__}"
        )
    return value
