"""SampledSet: a set of completions as JSON lines, written as it grows, with images and videos in a
folder."""

import json
import math
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Self

from groupwise import attachments
from groupwise.kit import media
from groupwise.kit.errors import UserError
from groupwise.storage.attached import Attached
from groupwise.storage.samples import numbered


class SampledSet:
    """A file of JSON lines, which `datasets` and TRL can read, open for writing.

    After an error, a full disk or a signal it still has only whole lines. Images (as PNGs) and
    videos are saved in a folder beside it, before the line whose column `file_name` names them; so
    are those of prompts, each once, which their own columns and messages name.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Writes nothing yet. Raises UserError if the file exists or does not end in .jsonl."""
        self.path, self.overwrite = path, overwrite
        self._file: FileIO | None = None
        self._attached = Attached(self.folder, path.parent)
        if path.suffix != ".jsonl":
            raise UserError(f"--output: expected a file name that ends in .jsonl, found {path}")
        if path.is_dir():
            raise UserError(f"--output: {path} is a folder")
        if path.exists() and not overwrite:
            raise UserError(f"{path} exists: choose another --output, or replace it: --overwrite")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> FileIO:
        """The file, opened with the first rows, so that an earlier error keeps an older set."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for file in self.folder.glob("[0-9]*_[0-9]*.*") if self.overwrite else ():
                file.unlink()
            # Unbuffered, so that written rows survive a kill of this process.
            self._file = self.path.open("wb" if self.overwrite else "xb", buffering=0)
        return self._file

    @property
    def folder(self) -> Path:
        """The folder of images and videos."""
        return self.path.with_name(f"{self.path.stem}_images")

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows: all of these, or none if the disk is full."""
        file = self._opened()
        taken = set[str]()
        plain = [self._with_its_image(self._with_names(row), taken) for row in rows]
        self._attached.forget()  # pictures of a whole data set would fill the memory
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in map(_plain, plain)]
        data = "".join(lines).encode("utf-8", "backslashreplace")
        before = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except BaseException:
            file.truncate(before)
            raise

    def _with_names(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with the names of files in the place of its attachments."""
        named = attachments.of_row(row, self._attached.name)
        return {**named, "completion": attachments.replaced(row["completion"], self._attached.name)}

    def _with_its_image(self, row: Mapping[str, Any], taken: set[str]) -> Mapping[str, Any]:
        if not callable(getattr(row["completion"], "save", None)):
            return row
        self.folder.mkdir(exist_ok=True)
        stem = numbered(f"{row['draw']:06d}_{row['index']}", taken)
        file = media.write(row["completion"], self.folder / stem)
        rest = {key: value for key, value in row.items() if key != "completion"}
        return {"file_name": f"{self.folder.name}/{file.name}", **rest}


def _plain(value: Any) -> Any:
    """A value for JSON: null for NaN and infinity, text for any other type."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
