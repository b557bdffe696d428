"""Optical flow: where each pixel of a frame is in the next one, and whether that can be trusted.

Flow alone takes flicker and noise for motion: it finds for every pixel the place that is most like
it. So a vector counts only where it is *seen*:

- the flow back from the next frame returns to the pixel, within `SLACK`;
- it explains what changed: the next frame, moved back, leaves at most half of the difference around
  the pixel.

White noise fails the first test nearly everywhere, and light that flickers the second one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupwise_messages.frames import evenly

Floats = NDArray[np.float32]

SIDE = 128
"""Pixels of the longer side of what flow is computed on, whatever the video's own size."""
SLACK, SLACK_SHARE = 0.5, 0.1
"""How far the way there and back may end from where it began: pixels, and a share of the way."""
EXPLAINED = 0.5
"""The most of a difference that a vector may leave."""
AROUND = 9
"""Pixels of the window that differences are averaged over."""
FASTEST = 20
"""One pixel in so many makes the speed of a frame: a small thing that moves is motion."""
PAIRS = 8
"""Pairs of successive frames that `speed` looks at, evenly spaced."""
SMALLEST = 16
"""Pixels of the shorter side below which the flow's patches of eight have no room."""


@dataclass(frozen=True)
class Flow:
    """From one frame to the next, at `SIDE` pixels.

    vectors: [h, w, 2] float32, x and y in pixels.
    seen: [h, w] bool, whether a vector can be trusted.
    change: [h, w] float32, the mean difference of brightness around a pixel, 0 to 255.
    """

    vectors: Floats
    seen: NDArray[np.bool_]
    change: Floats

    @property
    def speed(self) -> float:
        """The mean length of the longest twentieth of the vectors, in shares of the longer side;
        vectors that are not seen have length 0."""
        lengths = np.where(self.seen, np.linalg.norm(self.vectors, axis=-1), 0.0).ravel()
        count = max(1, lengths.size // FASTEST)
        return float(np.partition(lengths, -count)[-count:].mean()) / max(self.seen.shape)


def flows(frames: NDArray[np.uint8]) -> list[Flow]:
    """The flow of each pair of successive frames, [F, H, W, 3] uint8; none of a single frame.

    By Dense Inverse Search (Kroeger et al., arXiv:1603.03590), as OpenCV has it.
    """
    import cv2

    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    grays = [_gray(frame) for frame in frames]
    return [
        _flow(before, after, search.calc(before, after, None), search.calc(after, before, None))
        for before, after in pairwise(grays)
    ]


def speed(video: Any) -> float | None:
    """How fast the fastest twentieth of the pixels moves, in shares of the longer side per second;
    None for a single frame. Of a long video the mean over `PAIRS` pairs of frames."""
    firsts = evenly(len(video.pixels) - 1, PAIRS)
    steps = [flows(video.pixels[first : first + 2])[0].speed for first in firsts]
    return float(np.mean(steps)) * float(video.rate) if steps else None


def steadiness(steps: Sequence[Flow]) -> float:
    """The share of all change that motion explains which goes on: 0.0 to 1.0; 0.0 without change.

    A pixel of frame t moves by v, and where it is then by w in the next step. It counts with the
    change around it, and is worth 1 - |w - v| / (|w| + |v|), or 0 where v or w is not seen.
    """
    steady = total = 0.0
    for now, later in pairwise(steps):
        following = _moved(later.vectors, now.vectors)
        seen = now.seen & (_moved(later.seen.astype(np.float32), now.vectors) > 0.5)
        length = np.linalg.norm(now.vectors, axis=-1) + np.linalg.norm(following, axis=-1)
        turn = np.linalg.norm(following - now.vectors, axis=-1)
        worth = 1.0 - turn / np.maximum(length, 1e-6)
        steady += float((now.change * seen * worth).sum())
        total += float(now.change.sum())
    return min(1.0, max(0.0, steady / total)) if total else 0.0


def _flow(before: Any, after: Any, there: Floats, back: Floats) -> Flow:
    length = np.linalg.norm(there, axis=-1)
    gap = np.linalg.norm(there + _moved(back, there), axis=-1)
    change = _around(before, after)
    left = _around(before, _moved(after, there))
    seen = (gap < SLACK + SLACK_SHARE * length) & (left < EXPLAINED * change)
    return Flow(there, seen, change)


def _around(one: Any, other: Any) -> Floats:
    import cv2

    difference = np.abs(one.astype(np.float32) - other.astype(np.float32))
    mean: Floats = cv2.blur(difference, (AROUND, AROUND))
    return mean


def _moved(values: Any, vectors: Floats) -> Floats:
    """The values [h, w] or [h, w, 2] at the places that the vectors point to."""
    import cv2

    rows, columns = np.indices(vectors.shape[:2], dtype=np.float32)
    moved: Floats = cv2.remap(
        values,
        columns + vectors[..., 0],
        rows + vectors[..., 1],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return moved


def _gray(frame: NDArray[np.uint8]) -> Any:
    """A frame [H, W, 3] as brightness [h, w] uint8 with `SIDE` pixels in its longer side."""
    import cv2

    height, width = frame.shape[:2]
    scale = SIDE / max(height, width)
    size = tuple(max(SMALLEST, round(edge * scale)) for edge in (width, height))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return cv2.resize(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), size, interpolation=way)
