"""Reading the dataset columns that rewards need."""

from collections.abc import Mapping, Sequence
from typing import Any


def column(columns: Mapping[str, Sequence[Any]], name: str, *, reward: str) -> Sequence[Any]:
    """Returns the column `name`; a ValueError names the reward and the columns that exist."""
    if columns.get(name) is None:
        names = ", ".join(sorted(columns)) or "none"
        raise ValueError(f"reward {reward!r} needs the column {name!r}; the columns are: {names}")
    return columns[name]


def gold_text(gold: Any) -> str | None:
    """Returns a gold answer as text, stripped; None where it is blank.

    A list of one element stands for this. Raises ValueError for any other list and for a mapping,
    whose text is no answer.
    """
    if isinstance(gold, list | tuple) and len(gold) < 2:
        return gold_text(gold[0]) if gold else None
    if isinstance(gold, list | tuple | Mapping):
        raise ValueError(
            f"expected one gold answer, a string, a number or a truth value, found a "
            f"{type(gold).__name__} of {len(gold)}: {gold!r:.80}"
        )
    return None if is_missing(gold) else str(gold).strip() or None


def gold_texts(gold: Any) -> tuple[str, ...]:
    """Returns the texts of a gold answer, all of which are right: those of a truth value are True
    and true. None where the row has no answer that can be used."""
    try:
        text = gold_text(gold)
    except ValueError:  # `gold_completion` raises it before the run
        return ()
    if text is None:
        return ()
    return (text, text.lower()) if _is_boolean(gold) else (text,)


def accepted_texts(gold: Any) -> tuple[str, ...]:
    """Returns the texts of which each is a right answer, the first of them the plainest.

    A list holds several. Of a mapping they stand where published rows have them: `value` and
    `aliases` (TriviaQA), `text` (SQuAD), `target` (Search-R1), also within `ground_truth`. Raises
    ValueError for a mapping without these, and for a list of lists or mappings.
    """
    if isinstance(gold, Mapping):
        parts = [gold[name] for name in _ACCEPTED if name in gold]
        if not parts:
            raise ValueError(
                f"expected gold answers, a string, a list of strings or a mapping with one of "
                f"{', '.join(_ACCEPTED)}, found a mapping with {', '.join(map(str, gold))}"
            )
        return tuple(dict.fromkeys(text for part in parts for text in accepted_texts(part)))
    if isinstance(gold, list | tuple) and len(gold) == 1:
        return accepted_texts(gold[0])
    every = gold if isinstance(gold, list | tuple) else (gold,)
    for each in every:
        if isinstance(each, list | tuple | Mapping):
            raise ValueError(
                f"expected a list of gold answers, strings or numbers, found a list with a "
                f"{type(each).__name__} in it: {gold!r:.80}"
            )
    return tuple(dict.fromkeys(text for each in every for text in gold_texts(each)))


_ACCEPTED = ("value", "aliases", "text", "target", "ground_truth")
"""Where the mappings of published rows have their accepted answers."""


def _is_boolean(gold: Any) -> bool:
    return isinstance(gold, bool) or (isinstance(gold, list | tuple) and _is_boolean(gold[0]))


def members(groups: Sequence[int]) -> list[list[int]]:
    """The rows of each group, in the order of the groups' first rows.

    groups: the number of each row's group, as rewards receive it.
    """
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    return list(rows.values())


def is_missing(value: Any) -> bool:
    """Returns whether a row has no value: None, or NaN (an empty cell of a CSV file)."""
    return value is None or (isinstance(value, float) and value != value)  # noqa: PLR0124 - NaN
