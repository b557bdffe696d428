"""Size and processor time of a video's file by format: moving gradients, a disk and some noise.

OMP_NUM_THREADS=1 python tests/benchmarks/video_files.py
"""

import io
import time

import numpy as np

from groupwise_messages import animation
from groupwise_messages.video import Video

SHAPES = [(5, 32, 32), (17, 128, 128), (33, 256, 256), (81, 480, 832)]
FILES = [(".apng", {}), (".avif", {}), (".avif", {"speed": 6}), (".webp", {}), (".mp4", {})]


def film(frames: int, height: int, width: int) -> Video:
    """Waves that move, a red disk that crosses them, and noise of a camera."""
    rng, (y, x) = np.random.default_rng(0), np.mgrid[:height, :width]
    pictures = []
    for k in range(frames):
        waves = (
            np.sin(x / 17 + k / 3) + np.cos(y / 23),
            np.cos(x / 31 - k / 5),
            np.sin(y / 41 + k / 7),
        )
        picture = 128 + 50 * np.stack(waves, -1) + rng.normal(0, 4, (height, width, 3))
        disk = (x - width / 4 - k * width / 100) ** 2 + (y - height / 2) ** 2 < (height / 8) ** 2
        picture[disk] = 220, 30, 30
        pictures.append(picture.clip(0, 255).astype(np.uint8))
    return Video(np.stack(pictures))


if __name__ == "__main__":
    for shape in SHAPES:
        video = film(*shape)
        for suffix, options in FILES:
            content, start = io.BytesIO(), time.process_time()
            animation.write(video, content, suffix, **options)
            seconds = time.process_time() - start
            size = len(content.getvalue()) / 1e6
            print(*shape, suffix, options or "", f"{size:.3f} MB, {seconds:.1f} s", flush=True)
