"""Default watches: what installed packages measure of every completion of their class."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache

from groupwise.evaluation import Sample, Watch
from groupwise.kit.errors import UserError, first_line
from groupwise.kit.terminal import say
from groupwise.registry import installed


class DefaultWatches:
    """Measures the completions of an evaluation, outside of rewards.

    watches: by name, those that are not rewards of the run.
    """

    def __init__(self, rewards: Collection[str] | None) -> None:
        """rewards: names of the run's rewards, which take the place of watches of that name; None:
        nothing is watched by default."""
        every = _installed() if rewards is not None else {}
        self.watches = {n: watch for n, watch in every.items() if n not in (rewards or ())}
        self._broken: set[str] = set()

    def measured(self, sample: Sample) -> Sample:
        """The record with the values of its completion among those that are watched."""
        if sample.get("failed"):
            return sample
        names = self.of(type(sample["completion"]))
        if not names:
            return sample
        values = {name: self._value(name, sample["completion"]) for name in names}
        return {**sample, "watched": {**(sample.get("watched") or {}), **values}}

    def applied(self, samples: Sequence[Sample]) -> list[str]:
        """Names of the watches that apply to any of these records."""
        names = {name for sample in samples for name in sample.get("watched") or ()}
        return [name for name in self.watches if name in names]

    def of(self, kind: type) -> list[str]:
        """Names of the watches that apply to completions of this class."""
        classes = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
        return [name for name, watch in self.watches.items() if not classes.isdisjoint(watch.of)]

    def _value(self, name: str, completion: object) -> float | None:
        try:
            value = self.watches[name].measure(completion)
            return None if value is None else float(value)
        except Exception as error:  # of another package; a run does not end because of it
            if name not in self._broken:
                self._broken.add(name)
                say(f"warning: watch {name!r} failed: {type(error).__name__}: {first_line(error)}")
            return None


@cache
def _installed() -> Mapping[str, Watch]:
    """By name, the watches of this environment, without those that lack a package."""
    registry, watches = installed(), dict[str, Watch]()
    for entry in registry.entries:
        if entry.kind == "watches" and entry.name not in watches:
            try:
                watches[entry.name] = registry.load("watches", entry.name)
            except UserError as error:
                say(f"warning: {first_line(error)}")
    return watches
