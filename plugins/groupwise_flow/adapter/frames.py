"""Frames: a video as rewards see it."""

from pathlib import Path

from PIL import Image


class Frames(list[Image.Image]):
    """A video's frames as PIL images, in order, all of one size."""

    def save(self, path: Path, milliseconds: int = 125) -> None:
        """Save as animated PNG, which browsers show; milliseconds: duration of one frame."""
        first, *others = self
        first.save(path, save_all=True, append_images=others, duration=milliseconds)
