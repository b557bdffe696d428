"""Frames: the pictures of a video, as rewards see them and as samples are saved."""

from pathlib import Path

from PIL import Image


class Frames(list[Image.Image]):
    """PIL images in their order, all of one size."""

    def save(self, path: Path, milliseconds: int = 125) -> None:
        """As an animated PNG, which browsers show; milliseconds: how long each is to be seen."""
        first, *others = self
        first.save(path, save_all=True, append_images=others, duration=milliseconds)
