"""Attached: the attachments of prompts and messages as files, each stored once."""

import mimetypes
import re
import secrets
from pathlib import Path
from typing import Any

from groupwise import attachments
from groupwise.kit import media
from groupwise.storage.disk import is_of_disk

SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")


class Attached:
    """Stores attachments in a folder, each under the digest of its bytes.

    root: the folder that their names are relative to. Files that rows name are copied only if they
    are media by their suffix: a data set must not be able to publish any other.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self._objects: dict[int, tuple[Any, str]] = {}  # with the object, so that its id stays
        self._stored: dict[str, str] | None = None  # names of files, by their stems

    def name(self, value: Any) -> Any:
        """The name of an attachment's file; in words what cannot be stored."""
        if callable(getattr(value, "save", None)):
            if id(value) not in self._objects:
                self._objects[id(value)] = value, self._saved(value)
            return self._objects[id(value)][1]
        path = attachments.path_of(value)
        if path and not attachments.is_open(value) and not _is_media(path):
            return attachments.named(value)
        try:
            content = attachments.content(value)
        except (OSError, ValueError):  # a file that is gone
            return attachments.named(value)
        if not isinstance(content, bytes):
            return attachments.named(value)
        suffix = Path(path).suffix.lower()
        return self._named(content, suffix if SUFFIX.fullmatch(suffix) else "")

    def forget(self) -> None:
        """Let go of the open objects that were stored so far."""
        self._objects = {}

    def _saved(self, value: Any) -> str:
        """The name of an open object, saved as its medium does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = secrets.token_hex(8)
        try:
            file = media.write(value, self.folder / fresh)
            return self._named(file.read_bytes(), file.suffix)
        except Exception as error:  # of colours that a PNG cannot hold, say
            if is_of_disk(error):
                raise
            return attachments.named(value)
        finally:
            for file in self.folder.glob(f"{fresh}.*"):
                file.unlink()

    def _named(self, content: bytes, suffix: str) -> str:
        """The name of a file with this content, which is written if there is none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._stored is None:
            self._stored = {file.stem: file.name for file in self.folder.iterdir()}
        stem = attachments.digest(content)[-32:]
        if stem not in self._stored:
            fresh = self.folder / secrets.token_hex(8)
            fresh.write_bytes(content)
            fresh.replace(self.folder / f"{stem}{suffix}")
            self._stored[stem] = f"{stem}{suffix}"
        return (self.folder / self._stored[stem]).relative_to(self.root).as_posix()


def _is_media(path: str) -> bool:
    kind = mimetypes.guess_type(path)[0] or ""
    return kind.partition("/")[0] in ("image", "audio", "video")
