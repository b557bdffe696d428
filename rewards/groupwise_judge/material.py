"""Material: for each sample what its judge reads, from the arguments of a reward's call."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise_judge.messages import Exhibit, exhibits
from groupwise_judge.settings import Shown

REFERENCE = "reference answer"


def contexts(
    shown: Shown, prompts: Sequence[Any], columns: Mapping[str, Sequence[Any] | None]
) -> list[list[Exhibit]]:
    """For each sample the exhibits before its completion: prompt, pictures and reference answer.

    The columns `image` and `images` hold a prompt's pictures, as for policies that see. Raises
    ValueError for a missing column, and for a prompt or a picture that cannot be shown.
    """
    references = column(columns, shown.reference) if shown.reference else [None] * len(prompts)
    before = []
    for row, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
        try:
            of_prompt = []
            if shown.prompt:
                of_prompt = exhibits("prompt", prompt, _pictures(columns, row), files=True)
            after = (
                [] if is_blank(reference) else exhibits(REFERENCE, _stated(reference), files=True)
            )
        except ValueError as error:
            raise ValueError(f"sample {row}: {error}") from error
        before.append([*of_prompt, *after])
    return before


def column(columns: Mapping[str, Sequence[Any] | None], name: str) -> Sequence[Any]:
    """A column; ValueError, with the names that exist, if it is missing."""
    values = columns.get(name)
    if values is None:
        names = ", ".join(sorted(columns)) or "none"
        raise ValueError(f"the judge needs the column {name!r}; the columns are: {names}")
    return values


def is_blank(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or blank text."""
    is_nan = isinstance(value, float) and value != value  # noqa: PLR0124
    return value is None or is_nan or (isinstance(value, str) and not value.strip())


def _pictures(columns: Mapping[str, Sequence[Any] | None], row: int) -> list[Any]:
    one, several = columns.get("image"), columns.get("images")
    image = None if one is None else one[row]
    images = None if several is None else several[row]
    if image is not None and isinstance(images, list | tuple):
        raise ValueError(
            "it has both columns, `image` (one picture) and `images` (a list); leave one out"
        )
    if not isinstance(images, Sequence) or isinstance(images, str | bytes):
        images = []
    return [*([] if image is None else [image]), *images]


def _stated(reference: Any) -> Any:
    """Numbers as text; everything else as it is."""
    return str(reference) if isinstance(reference, int | float) else reference
