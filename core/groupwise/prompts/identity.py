"""Identity: a prompt or a whole row as text that depends on its content alone."""

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import torch
from torch import Tensor

from groupwise import attachments
from groupwise.kit.errors import UserError
from groupwise.kit.media import medium_of
from groupwise.prompt_source import Row


def identity(value: Any) -> str:
    """A value of a row, or a whole row, as text: equal for equal contents, in every process.

    JSON with sorted keys. Tensors, arrays, bytes and values of a known medium, such as pictures,
    are written as the SHA-256 of their content. Raises UserError for an object whose content is
    not known, since its text could differ between processes.
    """
    try:
        return _text(value)
    except _UnknownError as error:
        raise UserError(
            f"prompts.key: a row is identified by its content, and it holds {error}; set "
            f"prompts.key to a column of text or numbers that is the same for rows that ask the "
            f"same"
        ) from error


def of_prompt(row: Row) -> Any:
    """What a row asks: its prompt and, if it has any, its attachments by their content.

    So the same picture is the same question in whatever file it is.
    """
    prompt = attachments.replaced(row["prompt"], attachments.key)
    own = [*map(attachments.key, attachments.in_columns(row))]
    return {"prompt": prompt, "attachments": own} if own else prompt


def fingerprint(row: Mapping[str, Any]) -> str:
    """A hash of all columns of a row: rows with one prompt and different gold answers differ.

    It is the same in all processes and in a resumed run, wherever the row is in its source. Raises
    UserError, which names the column, for a content that is not known, as `identity` does.
    """
    try:
        text = _text(dict(row))
    except _UnknownError as error:
        column = next(name for name, value in row.items() if not _is_known(value))
        raise UserError(
            f"train.replay: completions are kept for the content of all columns of a row, and its "
            f"column {column!r} holds {error}; leave this column out of the rows, or leave "
            f"train.replay out"
        ) from error
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


class _UnknownError(Exception):
    """An object without a known content."""


def _text(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, default=_content)
    except TypeError as error:  # keys of a mapping that JSON cannot write or sort
        raise _UnknownError(f"a mapping with such keys: {error}") from error
    except (RecursionError, ValueError) as error:  # deep, or inside itself
        raise _UnknownError("lists or mappings that are nested too deeply") from error


def _is_known(value: Any) -> bool:
    try:
        _text(value)
    except _UnknownError:
        return False
    return True


def _content(value: Any) -> Any:
    """What JSON writes for a value that it does not know."""
    medium = medium_of(value)  # first, since a video is a sequence, too
    return _of_collection(value) if medium is None else _hashed(*medium.content(value))


def _of_collection(value: Any) -> Any:
    """The same for sets, mappings and sequences, and for what has one way to be written."""
    match value:
        case dt.date() | dt.time() | dt.timedelta() | Decimal() | PurePath() | UUID():
            return str(value)
        case bytes() | bytearray():
            return attachments.digest(value)
        case set() | frozenset():
            return sorted(map(_text, value))
        case Mapping():
            return dict(value)
        case Sequence():
            return list(value)
    return _of_array(value)


def _of_array(value: Any) -> Any:
    """The same for numbers and arrays of NumPy, and for tensors."""
    match value:
        case np.generic():
            return value.item()
        case np.ndarray() if value.dtype.hasobject:  # its buffer holds addresses
            return value.tolist()
        case np.ndarray():
            return _hashed(f"{value.dtype.str} {list(value.shape)}", value.tobytes())
        case Tensor():
            data = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            return _hashed(f"{value.dtype} {list(value.shape)}", data)
    kind = type(value)
    raise _UnknownError(f"an object of type {kind.__module__}.{kind.__qualname__}")


def _hashed(kind: str, data: bytes | bytearray) -> str:
    return f"{kind} sha256:{hashlib.sha256(data).hexdigest()}"
