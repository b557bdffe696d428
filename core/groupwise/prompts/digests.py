"""Digests: whether the rows of a resumed run are those that it had."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from groupwise import attachments
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.prompts.draws import Prompts
from groupwise.prompts.identity import fingerprint
from groupwise.record import Group

SPREAD = 100
"""Rows of training that are compared, at equal distances: reading all may take long."""
DIGITS = 16
UNKNOWN = ""
"""The digest of a row with content that cannot be compared."""


def digests(prompts: Prompts, evaluated: Sequence[Group]) -> dict[str, list[str]]:
    """What a checkpoint keeps of the rows: hashes of some that are trained on, and of all that are
    evaluated."""
    return {
        "rows": [_digest(prompts.row(index)) for index in _spread(len(prompts.source))],
        "evaluated": [_digest(draw.row) for draw in evaluated],
    }


def changed_rows(
    before: Mapping[str, Any], now: Mapping[str, Any], prompts: Prompts, evaluated: Sequence[Group]
) -> Iterator[str]:
    """Notes on rows that are others than when the checkpoint was made.

    before, now: of `digests`; before may be of a source of another size.
    """
    places = [f"{prompts.name}, row {index}" for index in _spread(len(prompts.source))]
    rows = before.get("rows", [])
    if len(rows) == len(places) and (others := _others(rows, now["rows"])):
        yield (
            f"the rows of prompts are others than before, {len(others)} of {len(places)} that were "
            f"compared (the first: {places[others[0]]}): training goes on with the new ones"
        )
    if others := _others(before.get("evaluated", []), now["evaluated"]):
        place = getattr(evaluated[others[0]].row, "place", "")
        yield (
            f"{len(others)} of {len(evaluated)} evaluated prompts are others than before"
            f"{place and f' (the first: {place})'}: evaluations before and after this start cannot "
            f"be compared; begin a new run to compare them"
        )


def _spread(count: int) -> list[int]:
    most = min(count, SPREAD)
    return [number * count // most for number in range(most)]


def _digest(row: Row) -> str:
    """Of a row with its attachments by their content, wherever their files are."""
    try:
        return fingerprint(attachments.of_row(row, attachments.key))[:DIGITS]
    except UserError:
        return UNKNOWN


def _others(before: Sequence[str], now: Sequence[str]) -> list[int]:
    pairs = enumerate(zip(before, now, strict=False))
    return [place for place, (was, becomes) in pairs if was != becomes]
