"""Prompts: the order of training prompts, and the held-out split; resumable."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from groupwise import attachments
from groupwise.kit import media
from groupwise.kit.errors import UserError
from groupwise.prompt_source import PlacedRow, PromptSource, Row, check_row
from groupwise.prompts.identity import identity, of_prompt
from groupwise.prompts.outcomes import Outcome
from groupwise.prompts.split import held_out
from groupwise.record import Group
from groupwise.record.seeds import seed_for

SCAN = 200_000
"""Rows to search for held-out prompts before giving up; a generated source may be endless."""
MOST_RESTS = 100
"""The most rows that `rests` may pass over for one draw."""


class Prompts:
    """Draws training prompts in a seeded order, epoch after epoch, without the held-out ones.

    key: the column with the question, for sources in which several prompts ask the same; if unset,
        the source's own key, else the prompt. has_key: whether one of the first two is set.
    attached: whether what is attached to a prompt is a part of its question, by its content, as for
        policies that read it.
    name: of the source, for messages about its rows.
    skips: rows for which this is true are never drawn, neither for training nor for evaluation.

    observes: whether the order depends on the outcomes of draws.

    Its whole state is `position`, the number of rows passed, `drawn`, the number of draws, and
    `skipped`, the number of rows left out by `skips`.
    """

    observes = False
    skips: Callable[[Row], bool]

    def __init__(
        self,
        source: PromptSource,
        *,
        seed: int = 0,
        fraction: float = 0.1,
        shuffle: bool = True,
        key: str | None = None,
        attached: bool = False,
        name: str = "prompts",
    ) -> None:
        if len(source) == 0:
            raise UserError("the prompts are empty: the source has no rows")
        self.source, self.seed, self.fraction, self.shuffle = source, seed, fraction, shuffle
        named: str | None = key or getattr(source, "key", None)
        self.key, self.has_key = named or "prompt", named is not None
        self.attached, self.name = attached, name
        self.skips = lambda _: False
        self.position = self.drawn = self.skipped = 0
        self._epoch, self._order = -1, torch.empty(0)
        check_row(source[0], 0)

    @property
    def each(self) -> "Sequence[Prompts]":
        """The draws of each source; of one source itself."""
        return (self,)

    def question(self, row: Row) -> str:
        """The question of a row as text, equal for rows that ask the same."""
        return identity(self._key(row))

    def prompt(self, row: Row) -> Any:
        """The prompt of a row, with its attachments by their content if they count."""
        return of_prompt(row) if self.attached else row["prompt"]

    def is_held_out(self, row: Row) -> bool:
        return held_out(self._key(row), self.fraction)

    def side(self, row: Row) -> tuple[str, bool]:
        """The question of a row, and whether it is held out; attachments are read once."""
        key = self._key(row)
        question = identity(key)
        return question, held_out(key if isinstance(key, str) else question, self.fraction)

    def _key(self, row: Row) -> Any:
        if self.key not in row:
            raise UserError(
                f"prompts.key: a row has no column {self.key!r} (it has {', '.join(map(str, row))})"
            )
        if self.key == "prompt":
            return self.prompt(row)
        if self.attached and self.key in media.columns():
            return [*map(attachments.key, attachments.in_columns(row))]
        return row[self.key]

    def rows(self) -> Iterator[PlacedRow]:
        """The source's rows in its own order, the first `SCAN` of a source that has more."""
        for index in range(min(len(self.source), SCAN)):
            yield self.row(index)

    def take(self, count: int) -> list[Group]:
        """The next `count` draws. Raises UserError when the split leaves nothing to train on."""
        return [self._draw(*self._in_order()) for _ in range(count)]

    def again(
        self, number: int, index: int, source: str = "", number_in_source: int | None = None
    ) -> Group:
        """A draw that an earlier run has taken, by what its group says of it."""
        return Group(number, self.row(index), index)

    def rests(self, row: Row) -> bool:
        """Whether to pass over this row for now, although it may be drawn."""
        return False

    def observe(
        self, outcomes: Mapping[int, Outcome], over: Collection[int] = ()
    ) -> dict[str, float]:
        """Take the outcomes of draws, by their numbers, if the order depends on them (`observes`).
        Returns metrics.

        over: further draws that are over, whose outcome will never come if it is not among these.
        """
        return {}

    def _draw(self, index: int, row: Row) -> Group:
        self.drawn += 1
        return Group(self.drawn - 1, row, index)

    def _in_order(self) -> tuple[int, Row]:
        """The next row in the seeded order that may be drawn, and its number."""
        passed = skipped = rested = 0
        while passed < min(2 * len(self.source), len(self.source) + SCAN):
            index = self._index(self.position)
            row = self.row(index)
            self.position += 1
            held = self.is_held_out(row)
            if held or self.skips(row):
                passed += 1
                skipped += not held
            elif rested < MOST_RESTS and self.rests(row):
                rested += 1
            else:
                self.skipped += skipped
                return index, row
        skipping = f", as the policy skips {skipped / passed:.0%} of them" if skipped else ""
        raise UserError(
            f"prompts.held_out: {self.fraction} leaves none of {len(self.source)} prompts "
            f"to train on{skipping}"
        )

    def evaluation(self, count: int, *, distinct: bool = True, strict: bool = True) -> list[Group]:
        """The first `count` held-out prompts in the source's order, the same at every call.

        distinct: take each question once; if False, as often as the source has it.
        strict: raise UserError if there are fewer than `count`; otherwise return those.
        """
        draws: list[Group] = []
        questions: set[str] = set()
        skipped = 0
        for row in self.rows():
            if len(draws) == count:
                break
            question, is_held = self.side(row)
            if (distinct and question in questions) or not is_held:
                continue
            if self.skips(row):
                skipped += 1
                continue
            questions.add(question)
            draws.append(Group(len(draws), row))
        if strict and len(draws) < count:
            raise UserError(
                f"evaluation.prompts asks for {count} held-out prompts{self._named}, but only "
                f"{len(draws)} of {len(self.source)} rows are held out (held_out: {self.fraction})"
                + (", rows that ask the same counted once" if distinct else "")
                + "; lower evaluation.prompts or raise prompts.held_out"
                + (f". The policy skips {skipped} more of them" if skipped else "")
            )
        return draws

    @property
    def _named(self) -> str:
        return "" if self.name == "prompts" else f" of {self.name}"

    @property
    def cursor(self) -> dict[str, int]:
        """The position in the source, as a checkpoint has it."""
        return {"position": self.position, "drawn": self.drawn, "skipped": self.skipped}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.cursor)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position, self.drawn = state["position"], state["drawn"]
        self.skipped = state["skipped"]

    def _index(self, position: int) -> int:
        """The index of the row at this position of the seeded order."""
        epoch, offset = divmod(position, len(self.source))
        if not self.shuffle:
            return offset
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch, 0))
            self._order = torch.randperm(len(self.source), generator=generator)
            self._epoch = epoch
        return int(self._order[offset])

    def row(self, index: int) -> PlacedRow:
        """The row of this number. Raises UserError if it has no usable prompt."""
        row = self.source[index]
        check_row(row, index)
        return PlacedRow(row, f"{self.name}, row {index}")
