"""Attachments: what belongs to a prompt or a message beside its words, such as pictures.

The core does not look into them. It tells them apart by their content, finds their files, stores
each once and names them in texts for people; policies open them. An attachment is an object with a
method `save` (as opened pictures have), bytes, `{"bytes", "path"}` as `datasets` keeps a file, a
`data:` URL, or the path of a file.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np

from groupwise.kit import media

Change = Callable[[Any], Any]


def in_columns(row: Mapping[str, Any]) -> list[Any]:
    """The attachments in the columns of a row that media have (`groupwise.kit.media`), one or a
    list of them in each; [] without any."""
    own = []
    for name in media.columns():
        value = row.get(name)
        own += [*value] if isinstance(value, list | tuple) else [] if value is None else [value]
    return own


def replaced(messages: Any, change: Change) -> Any:
    """Messages with every attachment in their parts, `{"type": "image", "image": ...}`, changed;
    anything else as it is."""
    if not isinstance(messages, list | tuple):
        return messages
    return [_changed(message, change) for message in messages]


def _changed(message: Any, change: Change) -> Any:
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list | tuple):
        return message
    return {**message, "content": [_changed_part(part, change) for part in parts]}


def _changed_part(part: Any, change: Change) -> Any:
    own = of_part(part)
    return part if own is None else {**part, part["type"]: change(own)}


def of_part(part: Any) -> Any:
    """What is attached by a part of a message, under the name of its type as in `{"type": "image",
    "image": ...}`; None for a text, for a part without, and for what is no part."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return part.get(kind) if isinstance(kind, str) and kind != "text" else None


def of_row(row: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The row with every attachment changed, in its columns and in the messages of its prompt."""
    columns = {name: row[name] for name in media.columns() if row.get(name) is not None}
    changed = {
        name: [*map(change, own)] if isinstance(own, list | tuple) else change(own)
        for name, own in columns.items()
    }
    return {**row, **changed, "prompt": replaced(row["prompt"], change)}


def located(value: Any, folder: Path) -> Any:
    """An attachment; the path of a file in this folder as a whole one."""
    if isinstance(value, Mapping) and value.get("bytes") is None and value.get("path"):
        return {**value, "path": located(value["path"], folder)}
    if not isinstance(value, str | Path) or is_url(value):
        return value
    return str(folder / value) if _is_file(folder / value) else value


def is_url(value: Any) -> bool:
    return isinstance(value, str) and ("://" in value[:16] or value.startswith("data:"))


def content(value: Any) -> Any:
    """The bytes of an attachment, wherever they are; of an object that is open, the object itself,
    and of a text that leads to no file, the text.

    Raises ValueError for a `data:` URL that cannot be read.
    """
    match value:
        case {"bytes": bytes(data)}:
            return data
        case {"path": str(path)} | {"url": str(path)}:
            return content(path)
        case str() if value.startswith("data:"):
            return _of_data_url(value)
        case str() | Path() if not is_url(value) and _is_file(Path(value)):
            return Path(value).read_bytes()
    return value


def path_of(value: Any) -> str:
    """The name of an attachment's file; "" where it has none."""
    match value:
        case {"path": str(path)}:
            return path
        case str() | Path() if not is_url(value):
            return str(value)
    return ""


def digest(data: bytes | bytearray) -> str:
    """A name of these bytes."""
    return f"bytes sha256:{hashlib.sha256(data).hexdigest()}"


def key(value: Any) -> Any:
    """What tells an attachment from others, equal for equal bytes: the same picture has the same
    key in every file, as bytes, and as a `data:` URL. That of an opened picture is itself, another
    one than its file's, since its bytes are not known any more."""
    try:
        own = content(value)
    except (OSError, ValueError):  # a policy that opens it says so
        return value
    return digest(own) if isinstance(own, bytes) else own


def is_open(value: Any) -> bool:
    """Whether it is an attachment in memory: an object with a method `save`, or bytes."""
    data = value.get("bytes") if isinstance(value, Mapping) else value
    return isinstance(data, bytes) or callable(getattr(value, "save", None))


def is_self_contained(value: Any) -> bool:
    """Whether it names nothing that would have to be read from elsewhere, a file or an address: an
    attachment in memory, an array, or a `data:` URL.

    Whoever writes messages during a run (tools, servers, agents) may attach only such: another
    could show the run's own files to the model.
    """
    match value:
        case str():
            return value.startswith("data:")
        case {"url": url}:
            return not {"path", "bytes"} & value.keys() and is_self_contained(url)
    return is_open(value) or isinstance(value, np.ndarray)


def is_held(value: Any) -> bool:
    """Whether it is in memory, or the path of a file."""
    path = path_of(value)
    return is_open(value) or bool(path and _is_file(Path(path)))


def named(value: Any) -> str:
    """An attachment in words."""
    match value:
        case {"bytes": bytes(data)} | (bytes() as data):
            return f"[{len(data):,} bytes]"
        case {"path": str(text)} | {"url": str(text)} | (str() as text):
            return f"{text[:40]}..." if text.startswith("data:") else text
    match getattr(value, "size", None):
        case (int(width), int(height)) if hasattr(value, "__len__"):
            return f"[{len(value)} pictures {width}x{height}]"
        case (int(width), int(height)):
            return f"[picture {width}x{height}]"
    return f"[{type(value).__name__}]"


def readable(messages: Any) -> Any:
    """Messages with attachments in words; anything else as it is."""
    return replaced(messages, named)


def _of_data_url(url: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma:
        raise ValueError("the data: URL has no comma before its data")
    if not head.endswith(";base64"):
        return unquote_to_bytes(data)
    try:
        return base64.b64decode(unquote_to_bytes(data), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the data: URL is not base64: {error}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that is no file name
        return False
