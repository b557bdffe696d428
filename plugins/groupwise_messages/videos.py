"""Videos: how the core copies, compares and stores a `Video`."""

from copy import copy
from pathlib import Path
from typing import Any

from groupwise.kit.media import medium_of
from groupwise_messages.pictures import SMALL

REFUSED = (
    "a video, and this reward looks at pictures: name it as the `reward` of `per_frame`, which "
    "calls it with frames of each video"
)
"""What a reward for pictures says of a video, after "found"."""


class Videos:
    """The `groupwise.kit.media.Medium` of `Video`."""

    columns = ()
    suffixes = (".apng", ".avif")

    def shared(self, value: Any) -> Any:
        return copy(value)  # its pixels are read-only

    def own(self, value: Any) -> Any:
        own = copy(value)
        own.pixels = value.pixels.copy()
        own.pixels.flags.writeable = False
        return own

    def equal(self, one: Any, other: Any) -> bool:
        return bool(one == other)

    def content(self, value: Any) -> tuple[str, bytes]:
        return f"video {value.pixels.shape} {value.rate}", value.pixels.tobytes()

    def write(self, value: Any, path: Path, *, small: bool) -> Path:
        """An APNG, which has every pixel; of a large video an AVIF, since its APNG would have tens
        of megabytes, unless this Pillow was built without."""
        from PIL import features

        is_large = max(value.size) > SMALL and features.check("avif")
        suffix = ".avif" if is_large else ".apng"
        whole = path.with_name(f"{path.name}{suffix}")
        value.save(whole)
        return whole

    def read(self, path: Path) -> Any:
        from groupwise_messages.video import Video

        return Video.open(path)


VIDEOS = Videos()


def is_video(value: Any) -> bool:
    """Whether it is a `groupwise_messages.video.Video`; imports no Pillow."""
    return medium_of(value) is VIDEOS
