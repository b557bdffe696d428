"""PromptSource: a source of rows, each with a prompt; checks of rows."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from groupwise import attachments
from groupwise.kit.errors import UserError

Row = Mapping[str, Any]


class PromptSource(Protocol):
    """A map-style dataset of rows, each with at least a `prompt`: a string or chat messages.

    If its rows ask the same question in several wordings, an attribute `key` names the column with
    the question. If it makes prompts of columns, a method `of_text(text)` returns the row whose
    prompt a text makes, which a user has typed; raises UserError if one text is not enough. An
    attribute `notes` has sentences on the rows for `groupwise check` and the start of a run.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row: ...


class PlacedRow(dict[str, Any]):
    """A row of a source; place: where it is, for messages: "prompts, row 3"."""

    def __init__(self, row: Row, place: str) -> None:
        super().__init__(row)
        self.place = place


def with_columns(row: Row, columns: Row) -> Row:
    """The row with further columns, or others of these names, at the same place."""
    changed = {**row, **columns}
    return PlacedRow(changed, row.place) if isinstance(row, PlacedRow) else changed


def is_chat(value: Any) -> bool:
    """Whether it is a list of messages, each with `role` and `content`."""
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(part, Mapping) and {"role", "content"} <= set(part) for part in value)
    )


def row_of(source: PromptSource, text: str) -> Row:
    """The row of a text that a user has typed: in the words of the source's `of_text`, else as its
    first row has its prompt: a text, or the message of a user after the system message."""
    worded: Callable[[str], Row] | None = getattr(source, "of_text", None)
    if worded is not None:
        return worded(text)
    first = source[0]["prompt"]
    if not is_chat(first):
        return {"prompt": text}
    system = [part for part in first[:1] if part["role"] == "system"]
    return {"prompt": [*system, {"role": "user", "content": text}]}


def check_row(row: Any, index: int) -> None:
    """Raise UserError, with the row's number, if it has no usable prompt."""
    if not isinstance(row, Mapping):
        raise UserError(f"prompts, row {index}: expected a mapping, found {type(row).__name__}")
    if "prompt" not in row:
        columns = ", ".join(map(str, row)) or "none"
        raise UserError(f"prompts, row {index}: no column 'prompt' (it has {columns})")
    prompt = row["prompt"]
    if is_chat(prompt) or (isinstance(prompt, str) and prompt):
        _check_characters(prompt, index)
        return
    raise UserError(
        f"prompts, row {index}: 'prompt' must be a non-empty string or a list of messages with "
        f"'role' and 'content', found {attachments.readable(prompt)!r}"[:400]
    )


def _check_characters(prompt: Any, index: int) -> None:
    """Raise UserError for half of a surrogate pair, which tokenizers and files refuse."""
    words = attachments.readable(prompt)
    text = words if isinstance(words, str) else json.dumps(words, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"prompts, row {index}: 'prompt' holds half of a surrogate pair, "
            f"{text[error.start]!r}, which is not a character; was the text cut within an emoji? "
            f"`text.encode(errors='replace').decode()` removes it"
        ) from error
