"""Pictures: a column of any name and form becomes `image` or `images`, as policies read them."""

from collections.abc import Mapping
from typing import Any

from groupwise_messages.pictures import COLUMNS

CONDITION = {"modality": "image", "role": "condition"}
"""What UniRL's `media` says of a picture that the model reads."""


def with_pictures(row: dict[str, Any], column: str) -> dict[str, Any]:
    """The row with the pictures of this column under the name that policies read.

    A list becomes `images`. In it `{"modality", "role", "uri"}` stands for the file `uri`, and is
    left out where it is another modality, or another role than a condition.
    """
    value = row[column]
    others = {name: own for name, own in row.items() if name not in (column, *COLUMNS)}
    one, several = COLUMNS
    if value is None:
        return others
    if not isinstance(value, list | tuple):
        return {**others, one: value}
    return {**others, several: [_file(part) for part in value if _is_read(part)]}


def _is_read(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return True
    return all(part.get(name) in (None, usual) for name, usual in CONDITION.items())


def _file(part: Any) -> Any:
    return part["uri"] if isinstance(part, Mapping) and part.get("uri") else part
