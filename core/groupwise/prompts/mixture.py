"""Mixture: several sources of prompts as one, each with its share of the draws."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, chain

from groupwise.kit.errors import UserError
from groupwise.kit.section import Section
from groupwise.prompt_source import PromptSource, Row, row_of


@dataclass(frozen=True)
class Labelled:
    """A source whose rows have its label in a further column."""

    source: PromptSource
    column: str
    label: str

    @property
    def key(self) -> str | None:
        """The source's own column of questions, by which its rows are held out."""
        return getattr(self.source, "key", None)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> Row:
        row = self.source[index]
        if self.column in row:
            raise UserError(
                f"prompts.label_column: rows of the source {self.label!r} have a column "
                f"{self.column!r}, and in a mixture this column has the label of a row's source; "
                f"set prompts.label_column to another name"
            )
        return {**row, self.column: self.label}


class Mixture:
    """Rows of several sources, one source after the other, and the share of draws of each.

    When to use it: one policy learns several things at once, such as reasoning and general prompts.
    Each source has its own order, epochs and held-out rows; a step's prompts keep the shares.
    Rewards with `sources` judge the rows of these sources only.
    """

    class Config(Section):
        """No options beside the sections `sources` and `label_column`, which the run reads."""

    def __init__(
        self,
        _: Config,
        sources: Mapping[str, PromptSource],
        shares: Mapping[str, float],
        column: str,
    ) -> None:
        """sources, shares: by label; column: of the labels in rows."""
        self.column, self.shares = column, shares
        self.sources = {n: Labelled(source, column, n) for n, source in sources.items()}

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def __getitem__(self, index: int, /) -> Row:
        ends = accumulate(map(len, self.sources.values()))
        for source, end in zip(self.sources.values(), ends, strict=True):
            if index < end:
                return source[index - end + len(source)]
        raise IndexError(index)

    def of_text(self, text: str) -> Row:
        """The row of a text that a user has typed, as the first source has its rows."""
        label, first = next(iter(self.sources.items()))
        return {**row_of(first.source, text), self.column: label}

    @property
    def notes(self) -> list[str]:
        """Those of its sources, with their labels."""
        sources = self.sources.items()
        each = ([f"{n}: {x}" for x in getattr(s.source, "notes", ())] for n, s in sources)
        return [*chain.from_iterable(each)]


def shared_out(count: int, drawn: Mapping[str, int], shares: Mapping[str, float]) -> list[str]:
    """The labels of the next `count` draws, so that all draws have the shares.

    Each draw is of the source that is furthest behind its share: of n draws a source with the share
    s has n s, and less than one more or less with two sources.

    drawn: how many draws each has had.
    """
    whole, had = sum(shares.values()), dict(drawn)
    total, order = sum(had.values()), list[str]()
    for number in range(total + 1, total + count + 1):
        label = max(shares, key=lambda name: number * shares[name] / whole - had[name])
        had[label] += 1
        order.append(label)
    return order
