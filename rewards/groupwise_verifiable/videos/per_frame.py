"""A reward for videos, from a reward for pictures."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.rewards import Members, SampleErrors
from groupwise_messages.frames import evenly
from groupwise_messages.video import Video
from groupwise_verifiable.wrapped import Wrapped

Chosen = list[tuple[int, int]]
"""Row and number of each frame."""
FORWARDED = ("judges", "required_columns", "check_row", "estimate", "estimate_cpu", "close")
"""Members that are those of the reward itself."""


class PerFrame:
    """A reward for pictures on some frames of a video: their mean, or the least of them.

    The reward is called once with the frames of all videos; a frame has the prompt and the columns
    of its video. Where it compares the pictures of a group, frames of one place are compared. A
    video of which a frame fails has failed. Frames one by one say nothing about motion: a video
    that stands still is as good as its picture, so pair it with `motion`.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `per_frame`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        reward: Wrapped = Field(
            description="A reward for pictures, as under `rewards`: a name, and settings."
        )
        frames: int = Field(
            default=4,
            ge=1,
            description="How many frames, evenly spaced, the first and the last among them; 1: the "
            "first.",
        )
        every: int | None = Field(
            default=None, ge=1, description="Every n-th frame from the first on, instead."
        )
        gives: Literal["mean", "least"] = Field(
            default="mean", description="What a video gets of its frames' rewards."
        )

        @model_validator(mode="after")
        def _chooses_once(self) -> Self:
            if self.every is not None and "frames" in self.model_fields_set:
                raise ValueError("`frames` and `every` both choose frames; leave one of them out")
            return self

    def __init__(self, config: Config) -> None:
        """Raises ValueError for a reward that compares with references."""
        self.config, self.reward = config, config.reward
        self._members = Members.of(self.reward)
        if self._members.relative:
            raise ValueError(
                "`reward`: one that is `relative` compares with other videos, and is not called on "
                "frames; judges have an option `frames` of their own"
            )
        for name in FORWARDED:
            if (value := getattr(self._members, name)) is not None:
                setattr(self, name, value)
        # The reward's own columns stay in the signature, so that they are checked before the run.
        self.__signature__ = inspect.signature(self.reward)

    def load(self) -> None:
        """Loads the reward's model, if it has one."""
        if self._members.load is not None:
            self._members.load()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each video. Raises SampleErrors for videos of which a frame failed,
        and ValueError for a completion that is no video."""
        chosen, places = self._chosen(completions, columns.get("groups"))
        arguments = {
            name: _of_frames(name, value, chosen, len(completions))
            for name, value in columns.items()
        }
        if "groups" in columns:
            arguments["groups"] = places
        if columns.get("log_extra") is not None:
            arguments["log_extra"] = _gathering(columns["log_extra"], chosen, len(completions))
        frames = [completions[row][number] for row, number in chosen]
        errors: Mapping[int, str] = {}
        try:
            values = self.reward([prompts[row] for row, _ in chosen], frames, **arguments)
        except SampleErrors as failed:
            values, errors = failed.values, failed.errors
        of_videos = [self._value(own) for own in _gathered(list(values), chosen, len(completions))]
        if errors:
            by_video = {chosen[n][0]: f"frame {chosen[n][1]}: {why}" for n, why in errors.items()}
            raise SampleErrors(of_videos, by_video)
        return of_videos

    def _chosen(
        self, completions: Sequence[Any], groups: Sequence[int] | None
    ) -> tuple[Chosen, list[int]]:
        """The frames, those of a group and a place together, and a number for each such set."""
        numbers = [self._numbers(video, row) for row, video in enumerate(completions)]
        of_row = list(range(len(completions))) if groups is None else list(groups)
        sets: dict[tuple[int, int], Chosen] = {}
        for group in dict.fromkeys(of_row):
            rows = [row for row, own in enumerate(of_row) if own == group]
            for place in range(max(len(numbers[row]) for row in rows)):
                frames = [(row, numbers[row][place]) for row in rows if place < len(numbers[row])]
                sets[group, place] = frames
        chosen = [frame for frames in sets.values() for frame in frames]
        return chosen, [n for n, frames in enumerate(sets.values()) for _ in frames]

    def _numbers(self, video: Any, row: int) -> Sequence[int]:
        if not isinstance(video, Video):
            raise ValueError(
                f"reward 'per_frame', completion {row}: expected a video, found "
                f"{type(video).__name__}; name the reward for pictures itself"
            )
        if self.config.every is not None:
            return range(0, len(video), self.config.every)
        return evenly(len(video), self.config.frames)

    def _value(self, values: Sequence[Any]) -> float | None:
        """Of one video; NaN, which is a failure, if one of them is."""
        known = [float(value) for value in values if value is not None]
        if not known or any(map(math.isnan, known)):
            return math.nan if known else None
        return min(known) if self.config.gives == "least" else math.fsum(known) / len(known)


def _of_frames(name: str, value: Any, chosen: Chosen, size: int) -> Any:
    """An argument for the frames: a column has the value of its video for each, and of the policy's
    fact `pixels` the frame of its tensor; anything else is as it is."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != size:
        return value
    if name == "pixels" and all(getattr(one, "ndim", 0) == 4 for one in value):
        return [value[row][number] for row, number in chosen]
    return [value[row] for row, _ in chosen]


def _gathered(values: Sequence[Any], chosen: Chosen, size: int) -> Iterator[list[Any]]:
    """The values of each video's frames, in their order."""
    of_videos: list[list[tuple[int, Any]]] = [[] for _ in range(size)]
    for (row, number), value in zip(chosen, values, strict=True):
        of_videos[row].append((number, value))
    for own in of_videos:
        yield [value for _, value in sorted(own, key=lambda pair: pair[0])]


def _gathering(log_extra: Callable[..., None], chosen: Chosen, size: int) -> Callable[..., None]:
    """TRL's `log_extra` for a reward that has a value for each frame: a list for each video."""

    def log(name: str, values: Sequence[Any]) -> None:
        log_extra(name, list(_gathered(list(values), chosen, size)))

    return log
