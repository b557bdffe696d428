"""Mixed: draws from a mixture, of which each source has its own order."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Any

from groupwise.prompt_source import PlacedRow, Row
from groupwise.prompts.draws import Prompts
from groupwise.prompts.mixture import Mixture, shared_out
from groupwise.prompts.outcomes import Outcome
from groupwise.record import Group


class Mixed(Prompts):
    """Draws from each source of a mixture as if there were no other: in its own order, with its own
    epochs and held-out rows, and with seeds of its own. So what is drawn from a source does not
    depend on the others.

    draws: the draws of each source, by label.

    Its whole state is that of these draws.
    """

    source: Mixture

    def __init__(
        self,
        source: Mixture,
        make: Callable[..., Prompts],
        *,
        key: str | None = None,
        name: str = "prompts",
        **settings: Any,
    ) -> None:
        """make: makes the draws of a source, by the settings of `Prompts`."""
        self.draws: dict[str, Prompts] = {}
        for number, (label, part) in enumerate(source.sources.items()):
            own = key if len(part) and key in part[0] else None
            place = f"{name}.sources.{number}"
            self.draws[label] = make(part, key=own, name=place, **settings)
        super().__init__(source, key=key, name=name, **settings)
        keys = {each.key for each in self.draws.values()}
        self.key = keys.pop() if len(keys) == 1 else ""
        self.has_key = all(each.has_key for each in self.draws.values())
        self.observes = any(each.observes for each in self.draws.values())
        self._pending: dict[int, tuple[str, int]] = {}

    @property
    def each(self) -> Sequence[Prompts]:
        return [*self.draws.values()]

    @property
    def skips(self) -> Callable[[Row], bool]:
        return self._skips

    @skips.setter
    def skips(self, skips: Callable[[Row], bool]) -> None:
        self._skips = skips
        for each in self.draws.values():
            each.skips = skips

    def _key(self, row: Row) -> Any:
        return self.draws[row[self.source.column]]._key(row)

    def rows(self) -> Iterator[PlacedRow]:
        """The first rows of all sources, then their second ones, and so on."""
        each = (draws.rows() for draws in self.draws.values())
        return (row for rows in zip_longest(*each) for row in rows if row is not None)

    def row(self, index: int) -> PlacedRow:
        for draws in self.draws.values():
            if index < len(draws.source):
                return draws.row(index)
            index -= len(draws.source)
        raise IndexError(index)

    def take(self, count: int) -> list[Group]:
        drawn = {label: draws.drawn for label, draws in self.draws.items()}
        begun, order = sum(drawn.values()), shared_out(count, drawn, self.source.shares)
        own = {label: iter(d.take(order.count(label))) for label, d in self.draws.items()}
        groups = [self._of(label, next(own[label]), begun + n) for n, label in enumerate(order)]
        if self.observes:
            of_source = {g.number: (g.source, g.seed_number) for g in groups}
            self._pending |= of_source
        return groups

    def again(
        self, number: int, index: int, source: str = "", number_in_source: int | None = None
    ) -> Group:
        if self.observes:
            assert number_in_source is not None
            self._pending[number] = source, number_in_source
        row = self.draws[source].row(index)
        return Group(number, row, index, source, number_in_source)

    def _of(self, label: str, group: Group, number: int) -> Group:
        return replace(group, number=number, source=label, number_in_source=group.number)

    def observe(
        self, outcomes: Mapping[int, Outcome], over: Collection[int] = ()
    ) -> dict[str, float]:
        """As of `WeightedPrompts`; metrics are of each source."""
        if not self.observes:
            return {}
        metrics = dict[str, float]()
        pending = {number: self._pending.pop(number) for number in sorted({*outcomes, *over})}
        for label, draws in self.draws.items():
            own = {number: n for number, (of, n) in pending.items() if of == label}
            known = {n: outcomes[number] for number, n in own.items() if number in outcomes}
            if draws.observes and own:
                observed = draws.observe(known, [*own.values()])
                if known:
                    metrics |= {f"{name}/{label}": value for name, value in observed.items()}
        return metrics

    def evaluation(self, count: int, *, distinct: bool = True, strict: bool = True) -> list[Group]:
        """The first held-out prompts of each source, by the shares."""
        order = shared_out(count, dict.fromkeys(self.draws, 0), self.source.shares)
        drawn: Sequence[tuple[str, Group]] = [
            (label, group)
            for label, draws in self.draws.items()
            for group in draws.evaluation(order.count(label), distinct=distinct, strict=strict)
        ]
        return [self._of(label, group, n) for n, (label, group) in enumerate(drawn)]

    @property
    def cursor(self) -> dict[str, int]:
        """The positions in all sources, as `LABEL/position`, and their sums."""
        each = {label: draws.cursor for label, draws in self.draws.items()}
        sums = {
            name: sum(own[name] for own in each.values())
            for name in ("position", "drawn", "skipped")
        }
        return sums | {f"{n}/{k}": value for n, own in each.items() for k, value in own.items()}

    def state_dict(self) -> dict[str, Any]:
        each = ({f"{n}/{k}": x for k, x in d.state_dict().items()} for n, d in self.draws.items())
        return {**dict(chain.from_iterable(own.items() for own in each)), **self.cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A source that the state does not know begins anew."""
        for label, draws in self.draws.items():
            prefix = f"{label}/"
            own = {k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)}
            draws.load_state_dict(own or {"position": 0, "drawn": 0, "skipped": 0})
        self._pending = {}
