"""The texts that images are compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise_messages.texts import encodable, text_of


def texts(
    prompts: Sequence[Any],
    columns: Mapping[str, Sequence[Any] | None],
    name: str | None,
    *,
    reward: str,
) -> list[str | None]:
    """Returns each sample's text: of the column `name`, or the prompt if `name` is None.

    Of chat messages it is the last user message. None where there is no text.
    """
    if name is None:
        return [_plain(prompt, "the prompt", reward) for prompt in prompts]
    column = columns.get(name)
    if column is None:
        names = ", ".join(sorted(columns)) or "none"
        raise ValueError(f"reward {reward!r} needs the column {name!r}; the columns are: {names}")
    return [_plain(value, f"the column {name!r}", reward) for value in column]


def _plain(value: Any, source: str, reward: str) -> str | None:
    """The text of a string or of messages; None for a blank string or an empty cell."""
    if value is None or value != value:  # noqa: PLR0124 - NaN, an empty CSV cell
        return None
    if isinstance(value, str):
        return encodable(value) if value.strip() else None
    if not isinstance(value, Sequence) or not all(isinstance(part, Mapping) for part in value):
        raise ValueError(
            f"reward {reward!r} expected text or messages in {source}, found {value!r:.80}"
        )
    for message in reversed(value):
        if message.get("role") == "user":
            return encodable(text_of(message.get("content"), "\n"))
    error = f"reward {reward!r} found no message by the user in {source}: {value!r:.80}"
    raise ValueError(error)
