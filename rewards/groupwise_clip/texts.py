"""The texts that images are compared with."""

from collections.abc import Mapping, Sequence
from typing import Any


def texts(
    prompts: Sequence[Any],
    columns: Mapping[str, Sequence[Any] | None],
    name: str | None,
    *,
    reward: str,
) -> list[str | None]:
    """Returns each sample's text: of the column called `name`, or the prompt where that is None.

    Chat messages stand for the text of the last one by the user. None where there is no text.
    """
    if name is None:
        return [_encodable(_plain(prompt, "the prompt", reward)) for prompt in prompts]
    column = columns.get(name)
    if column is None:
        there = ", ".join(sorted(columns)) or "none"
        raise ValueError(f"reward {reward!r} needs the column {name!r}; the columns are: {there}")
    return [_encodable(_plain(value, f"the column {name!r}", reward)) for value in column]


def _encodable(text: str | None) -> str | None:
    """With U+FFFD for every lone surrogate, which no tokenizer takes."""
    return text and text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _plain(value: Any, what: str, reward: str) -> str | None:
    """The text of a text, of messages or of nothing, which a blank text and an empty cell are."""
    if value is None or value != value:  # noqa: PLR0124 - NaN, an empty CSV cell
        return None
    if isinstance(value, str):
        return value if value.strip() else None
    if not isinstance(value, Sequence) or not all(isinstance(part, Mapping) for part in value):
        raise ValueError(
            f"reward {reward!r} expected text or messages in {what}, found {value!r:.80}"
        )
    for message in reversed(value):
        if message.get("role") == "user":
            return _content(message.get("content"))
    error = f"reward {reward!r} found no message by the user in {what}: {value!r:.80}"
    raise ValueError(error)


def _content(content: Any) -> str:
    """A message's text; of one in parts, those that are text, a line each."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content or [] if isinstance(part, Mapping)]
    return "\n".join(part for part in parts if isinstance(part, str))
