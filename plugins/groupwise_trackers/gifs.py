"""GIFs: the videos of a table as files that every tracker shows moving."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SIDE = 256
"""Pixels of the longer side of a GIF, which has few colours and little compression."""


def gif(video: Any) -> bytes:
    """A small copy of a `groupwise_messages.video.Video`."""
    content: bytes = video.encoded(".gif", side=SIDE)
    return content


@contextmanager
def gif_files(videos: Mapping[int, Any]) -> Iterator[Mapping[int, Path]]:
    """A file for each video, by the same key, for as long as the context is open."""
    with TemporaryDirectory() as folder:
        files = {key: Path(folder) / f"{key}.gif" for key in videos}
        for key, file in files.items():
            file.write_bytes(gif(videos[key]))
        yield files
