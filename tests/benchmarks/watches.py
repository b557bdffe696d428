"""What the default watches cost: processor time for each completion.

python tests/benchmarks/watches.py
"""

import time

import numpy as np
from PIL import Image

from groupwise.evaluator.watches import DefaultWatches
from groupwise_messages.video import Video

SIZES = ((1, 32, 32), (1, 1024, 1024), (5, 32, 32), (33, 240, 416), (81, 480, 832))
REPEATS = 5


def main() -> None:
    draw, watches = np.random.default_rng(0), DefaultWatches([])
    for frames, height, width in SIZES:
        pixels = draw.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
        completion = Video(pixels) if frames > 1 else Image.fromarray(pixels[0])
        sample = {"completion": completion}
        names = watches.measured(sample)["watched"]  # what is imported first is not counted
        start = time.process_time()
        for _ in range(REPEATS):
            watches.measured(sample)
        cost = (time.process_time() - start) / REPEATS
        print(f"{frames} x {height} x {width}: {1000 * cost:.1f} ms for {', '.join(names)}")


if __name__ == "__main__":
    main()
