"""Gold: rewards that know the right completion of a row are tried on it before a run."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from groupwise.building.parts import Parts
from groupwise.kit.copies import copied
from groupwise.kit.errors import UserError, first_line
from groupwise.prompt_source import PlacedRow
from groupwise.rewards import Reward
from groupwise.scoring.probe import completed
from groupwise.scoring.scorer import Scorer

MOST = 200
"""Rows that are tried."""
SECONDS = 10.0
"""The most seconds to read them: some sources are slow."""


@dataclass(frozen=True, kw_only=True)
class Unusable:
    """Where a row is whose gold answer a reward cannot use, or does not accept, and why."""

    place: str
    why: str


def gold_notes(parts: Parts) -> Iterator[str]:
    """Notes on rows whose gold answers a reward cannot use, or refuses as wrong.

    Raises UserError for a reward that can use none of the first rows: its column holds something
    else, so it would apply to no completion.
    """
    for path, reward in parts.measures.items():
        if reward.members.gold_completion is None and reward.members.check_row is None:
            continue
        rows = [row for row in first_rows(parts) if reward.judges(row)]
        if not rows:
            continue
        needed = reward.members.columns.values()
        if any(rows[0].keys().isdisjoint(each) for each in needed):  # the environment returns one
            continue
        blank, refused = tried(reward, rows)
        if len(blank) == len(rows):
            problem = (
                f"reward {reward.name!r} applies to none of the first {len(rows)} prompts: "
                f"{blank[0].why} ({blank[0].place})"
            )
            raise UserError(parts.loaded.origin.message(path, problem))
        if blank:
            yield (
                f"reward {reward.name!r} does not apply to {len(blank)} of the first {len(rows)} "
                f"prompts, from which it learns nothing: {blank[0].why} ({blank[0].place})"
            )
        if refused:
            yield (
                f"reward {reward.name!r} gives less than 1 to the gold answer of {len(refused)} of "
                f"the first {len(rows)} prompts itself: {refused[0].why} ({refused[0].place})"
            )


def tried(reward: Reward, rows: Sequence[PlacedRow]) -> tuple[list[Unusable], list[Unusable]]:
    """The rows to which the reward does not apply, and those whose gold answer it gives less than
    1, unless it says that 1 does not mean right."""
    make, check = reward.members.gold_completion, reward.members.check_row
    blank = list[Unusable]()
    usable: list[tuple[PlacedRow, str]] = []
    for row in rows:
        try:
            own = copied(row, pictures=False)
            if check is not None:
                check(own)
            if make is None:
                continue
            completion = make(own)
        except ValueError as error:
            blank.append(Unusable(place=row.place, why=first_line(error)))
            continue
        if completion is None:
            blank.append(Unusable(place=row.place, why=f"no gold answer{_named(reward)}"))
        else:
            usable.append((row, completion))
    refused = list[Unusable]()
    for (row, text), value in zip(usable, _values(reward, usable), strict=True):
        if value != value:  # NaN: it does not apply  # noqa: PLR0124
            blank.append(Unusable(place=row.place, why=f"it cannot read {text!r:.80}"))
        elif reward.members.judges is not False and value < 1:
            refused.append(Unusable(place=row.place, why=f"{text!r:.80} gets {value:g}"))
    return blank, refused


def _named(reward: Reward) -> str:
    names = [name for each in reward.members.columns.values() for name in each]
    return f" in the column {names[0]!r}" if len(names) == 1 else ""


def _values(reward: Reward, usable: Sequence[tuple[PlacedRow, str]]) -> list[float]:
    if not usable:
        return []
    rows, texts = [row for row, _ in usable], [text for _, text in usable]
    scores = Scorer([replace(reward, isolate=False)])(completed(rows, texts))
    return [float(value) for value in scores.values[:, 0]]


def first_rows(parts: Parts) -> Iterator[PlacedRow]:
    """The rows that are tried: `MOST`, or as many as are read in `SECONDS`."""
    started = time.monotonic()
    for row in islice(parts.prompts.rows(), MOST):
        yield row
        if time.monotonic() - started > SECONDS:
            return
