"""Gold: how the right completion of a row is written for a reward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.kit.copies import copied
from groupwise.kit.draft import ANSWERS
from groupwise.prompt_source import PlacedRow, Row
from groupwise.rewards import Reward
from groupwise.scoring.mutants import text_of
from groupwise.scoring.probe import Probe, Value

FORMS = (
    "{}",
    "\\boxed{{{}}}",
    "#### {}",
    "<answer>{}</answer>",
    "<answer>\n{}\n</answer>",
    "<think>\nSo be it.\n</think>\n<answer>\n{}\n</answer>",
    "<think>\nSo be it.\n</think>\n<answer>\n\\boxed{{{}}}\n</answer>",
    "<reasoning>\nSo be it.\n</reasoning>\n<answer>\n{}\n</answer>",
    "The answer is {}",
    "```python\n{}\n```",
)
"""How models are usually asked to write an answer, the plainest first."""

LONGEST = 100
"""Characters of a value that is an answer, and not data to judge by."""


@dataclass(frozen=True, kw_only=True)
class Gold:
    """How the right completion of a row is written.

    column: that of the gold answer; None if a reward that states completions does not name one.
    least: the lowest value of a right completion: 1, or what is above 0 for a reward that does not
        say whether it judges. values: of the right completions of the rows that it was tried on.
    """

    column: str | None
    write: Callable[[Row], str | None]
    least: float
    values: Sequence[Value]

    def stated(self, row: Row) -> str | None:
        """The right completion of a row; None if it has none."""
        return stated(self.write, row)

    def with_answer(self, row: PlacedRow, answer: Any) -> PlacedRow:
        """The row with another gold answer."""
        assert self.column is not None
        return PlacedRow({**row, self.column: answer}, row.place)


def _named(reward: Reward) -> dict[str, str]:
    """By option the column that it names; without those of which several will do."""
    choices = reward.members.columns.items()
    return {option: names[0] for option, names in choices if len(names) == 1}


def gold_column(reward: Reward) -> str | None:
    """The column of gold answers that a reward reads: that of its option `gold`, or the parameter
    that has one of their usual names."""
    named = _named(reward)
    parameters = (name for name in ANSWERS if name in reward.parameters[0])
    return named.get("gold") or next(parameters, None)


def gold_of(reward: Reward, rows: Sequence[PlacedRow], probe: Probe) -> Gold | None:
    """How the right completions of the rows are written for a reward; None where it has no gold.

    That is what its `gold_completion` states; else a column's value, in the first of `FORMS` in
    which most rows are paid. A reward that reads no such column, or pays nothing of it, has gold if
    it pays another usual one, and not also another row's in its place, as formats and lengths do.
    """
    write = reward.members.gold_completion
    named = _named(reward)
    if write is not None:
        column = named.get("gold") or (next(iter(named.values())) if len(named) == 1 else None)
        return Gold(column=column, write=write, least=1.0, values=_paid(probe, rows, write))
    least = 1.0 if reward.members.judges else 5e-324
    read = gold_column(reward)
    own = None if read is None else _of_column(read, rows, probe, least)
    if own is not None and _count(own):
        return own
    for name in (name for name in ANSWERS if name != read and name in rows[0]):
        gold = _of_column(name, rows, probe, least)
        if gold is not None and _separates(gold, rows, probe):
            return gold
    if own is None or read is None:
        return None
    # Tests of programs, and other data to judge by, may have such a name, too.
    return own if all(_is_short(row.get(read)) for row in rows) else None


def _of_column(column: str, rows: Sequence[PlacedRow], probe: Probe, least: float) -> Gold | None:
    """None where the column is blank, or no form of its values can be judged at all."""
    if all(text_of(row.get(column)) is None for row in rows):
        return None
    best: Gold | None = None
    for form in FORMS:

        def write(row: Row, form: str = form) -> str | None:
            text = text_of(row.get(column))
            return None if text is None else form.format(text)

        gold = Gold(column=column, write=write, least=least, values=_paid(probe, rows, write))
        if all(value.error is not None for value in gold.values):
            continue
        if best is None or _count(gold) > _count(best):
            best = gold
    return best


def _is_short(answer: Any) -> bool:
    """Whether a value looks like an answer."""
    return isinstance(answer, str | int | float) and len(str(answer)) <= LONGEST


def _paid(
    probe: Probe, rows: Sequence[PlacedRow], write: Callable[[Row], str | None]
) -> list[Value]:
    """The values of the right completions; NaN for rows that have none."""
    texts = [stated(write, row) for row in rows]
    known = [(row, text) for row, text in zip(rows, texts, strict=True) if text is not None]
    values = iter(probe.values([row for row, _ in known], [text for _, text in known]))
    return [Value(float("nan")) if text is None else next(values) for text in texts]


def stated(write: Callable[[Row], str | None], row: Row) -> str | None:
    """The right completion that a reward states of a row, None if it has none."""
    try:
        return write(copied(row, pictures=False))
    except ValueError:  # `gold_notes` says so
        return None


def _count(gold: Gold) -> int:
    return sum(value.number >= gold.least for value in gold.values)


def _separates(gold: Gold, rows: Sequence[PlacedRow], probe: Probe) -> bool:
    """Whether it pays the gold answers of most rows, and not all of those of their neighbours."""
    if 2 * _count(gold) < len(rows):
        return False
    assert gold.column is not None
    others = [row.get(gold.column) for row in (*rows[1:], rows[0])]
    texts = [
        gold.stated(gold.with_answer(row, other)) for row, other in zip(rows, others, strict=True)
    ]
    values = probe.values(rows, [text or "" for text in texts])
    return any(
        value.number < own.number and text is not None
        for value, own, text in zip(values, gold.values, texts, strict=True)
    )
