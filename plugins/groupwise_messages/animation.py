"""Animation: files of videos.

APNG and AVIF keep every frame and the rate; WebP and GIF join equal frames that follow each other.
The formats and options were chosen by `tests/benchmarks/video_files.py`.
"""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from groupwise.kit.errors import UserError

if TYPE_CHECKING:
    from groupwise_messages.video import Video

LONGEST = 65_535
"""Milliseconds of a frame, the most that an APNG can say."""
MP4 = ".mp4"
FORMATS = {".png": "PNG", ".apng": "PNG", ".avif": "AVIF", ".webp": "WEBP", ".gif": "GIF"}
"""Pillow's formats of animations, by suffix."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "AVIF": {"quality": 60, "speed": 8},  # at speed 6 half as large, in six times as long
    "WEBP": {"quality": 75, "method": 0},
}


def write(video: "Video", target: Path | BinaryIO, suffix: str, **options: Any) -> None:
    """Write a file that moves.

    options: of Pillow's `Image.save`, or of the codec H.264. Raises ValueError for another suffix.
    """
    if suffix == MP4:
        _write_mp4(video, target, {str(key): str(value) for key, value in options.items()})
        return
    if suffix not in FORMATS:
        known = ", ".join((*FORMATS, MP4))
        raise ValueError(f"a video is saved as one of {known}, found {suffix or 'no suffix'}")
    kind = FORMATS[suffix]
    exif = Image.Exif()
    exif[ExifTags.Base.FrameRate] = float(video.rate)  # in files a frame has whole milliseconds
    frames = [*video]
    if kind == "GIF":  # Pillow's own choice of 256 colours takes many times as long
        frames = [frame.quantize(method=Image.Quantize.FASTOCTREE) for frame in frames]
    first, *others = frames
    own: dict[str, Any] = {"duration": _durations(len(video), video.rate), "loop": 0}
    if kind == "PNG":  # its encoder joins frames that are equal in content and in blending
        own["blend"] = [number % 2 for number in range(len(video))]
    if kind != "GIF":
        own["exif"] = exif
    own |= {**_OPTIONS.get(kind, {}), **options}
    first.save(target, kind, save_all=True, append_images=others, **own)


def read(path: Path | BinaryIO) -> tuple[NDArray[np.uint8], float | None]:
    """The frames [F, height, width, 3] and their number a second, None where the file has no
    durations. Raises OSError where it cannot be read."""
    try:
        with Image.open(path, formats=[*dict.fromkeys(FORMATS.values())]) as file:
            return _frames(file)
    except OSError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds for a damaged file
        raise OSError(f"it is damaged: {error}") from error


def _frames(file: Image.Image) -> tuple[NDArray[np.uint8], float | None]:
    count, (width, height) = getattr(file, "n_frames", 1), file.size
    frames, milliseconds = np.empty((count, height, width, 3), np.uint8), 0.0
    for number in range(count):
        file.seek(number)
        frames[number] = file.convert("RGB")
        milliseconds += file.info.get("duration", 0)
    rate = file.getexif().get(ExifTags.Base.FrameRate)
    if rate is None and milliseconds > 0:
        rate = 1000 * count / milliseconds
    return frames, None if rate is None else float(rate)


def _durations(count: int, rate: float) -> list[int]:
    """Whole milliseconds of each frame, which add up to the length of the video."""
    ends = [round(1000 * number / rate) for number in range(count + 1)]
    return [min(max(end - start, 1), LONGEST) for start, end in pairwise(ends)]


def _write_mp4(video: "Video", target: Path | BinaryIO, options: dict[str, str]) -> None:
    """H.264 by PyAV. Raises UserError where it is not installed."""
    try:
        import av
    except ImportError as error:
        raise UserError(
            f".mp4 needs PyAV: pip install 'groupwise[video]' ({error}); .avif, .webp and .apng "
            f"need nothing more"
        ) from error
    # Colours are stored for blocks of two by two pixels, so an odd side gets another row.
    odd = [(0, 0), *((0, side % 2) for side in video.pixels.shape[1:3]), (0, 0)]
    with av.open(str(target) if isinstance(target, Path) else target, "w", format="mp4") as file:
        stream = file.add_stream("libx264", Fraction(video.rate).limit_denominator(LONGEST))
        stream.pix_fmt, stream.options = "yuv420p", {"crf": "18", **options}
        stream.height, stream.width = (side + side % 2 for side in video.pixels.shape[1:3])
        for pixels in np.pad(video.pixels, odd, mode="edge"):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())
