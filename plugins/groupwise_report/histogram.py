"""Histograms of rewards: which share of completions had which, before and after training."""

import bisect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groupwise_report.axes import BOX, Axes, ticks
from groupwise_report.charts import swatch, value_texts
from groupwise_report.run_data import Row, RunData
from groupwise_report.wording import brief, display, number, tick_labels

FEWEST_BINS = 16
MOST_VALUES = 8  # distinct ones, which have a bar each
MOST_HISTOGRAMS = 8
QUARTER = 4  # a run's first and last quarter are compared
FEWEST = 12  # completions of a quarter
GAP = 0.25  # between two bins, as a share of one
Sides = Mapping[str, Sequence[float]]
"""The values of completions by the name of their side."""


def histograms(run: RunData) -> list[str]:
    """Of the total reward, held out and in training, and of rewards that take several values."""
    held_out = {side: run.samples.get(side, ()) for side in ("before", "after")}
    figures = [
        histogram(
            "Rewards, held out",
            _of(held_out),
            f"Shares of evaluated completions{_modes(held_out)}.",
        ),
        histogram(
            "Rewards, in training",
            _of(_quarters(run.training)),
            "Shares of the first completion of each step that is kept.",
        ),
    ]
    names = dict.fromkeys(n for rows in held_out.values() for row in rows for n in _rewards(row))
    for name in [*names][:MOST_HISTOGRAMS] if len(names) > 1 else ():
        own = _of(held_out, name)
        if len({value for values in own.values() for value in values}) > 2:
            figures.append(histogram(f"Reward, held out: {name}", own))
    return [figure for figure in figures if figure]


def _quarters(training: Sequence[Row]) -> dict[str, Sequence[Row]]:
    """Completions that were not chosen for their rewards, of the run's first and last quarter."""
    unbiased = [row for row in training if "first" in _chosen(row)]
    part = len(unbiased) // QUARTER
    if part < FEWEST:
        return {}
    return {"first quarter of the run": unbiased[:part], "last quarter": unbiased[-part:]}


def _modes(sides: Mapping[str, Sequence[Row]]) -> str:
    """How the completions were decoded, where a policy has two modes."""
    modes = {bool(row.get("greedy")) for rows in sides.values() for row in rows}
    return ", sampled and greedy" if len(modes) == 2 else ""


def _chosen(row: Row) -> Sequence[object]:
    words = row.get("chosen")
    return words if isinstance(words, list) else ()


def _rewards(row: Row) -> Mapping[str, object]:
    rewards = row.get("rewards")
    return rewards if isinstance(rewards, Mapping) else {}


def _of(sides: Mapping[str, Sequence[Row]], reward: str | None = None) -> dict[str, list[float]]:
    """The values of a reward, or of their sum; failed completions and missing values have none."""
    values = {
        side: [number(row.get("total") if reward is None else _rewards(row).get(reward))
               for row in rows]
        for side, rows in sides.items()
    }  # fmt: skip
    return {side: [v for v in own if v is not None] for side, own in values.items()}


@dataclass(frozen=True)
class Bins:
    """Bins of equal width on the page: bin i has the values from edges[i] to below edges[i + 1].

    labels: (place, text) of the marks below; a place is a share of the width.
    """

    edges: Sequence[float]
    labels: Sequence[tuple[float, str]]

    def shares(self, values: Sequence[float]) -> list[float]:
        """The share of the values in each bin."""
        last = len(self.edges) - 2
        counts = Counter(min(bisect.bisect_right(self.edges, v) - 1, last) for v in values)
        return [counts[n] / len(values) for n in range(last + 1)]


def bins_of(values: Sequence[float]) -> Bins:
    """A bin for each value if there are few, else bins of one size between round numbers."""
    distinct = sorted(set(values))
    if (count := len(distinct)) <= MOST_VALUES:
        labels = [((n + 0.5) / count, display(value)) for n, value in enumerate(distinct)]
        return Bins([*distinct, math.inf], labels)
    marks = ticks(distinct[0], distinct[-1], 5)
    parts = math.ceil(FEWEST_BINS / (len(marks) - 1))  # of the space between two marks
    count, width = parts * (len(marks) - 1), (marks[1] - marks[0]) / parts
    edges = [marks[0] + n * width for n in range(count + 1)]
    texts = zip(range(0, count + 1, parts), tick_labels(marks), strict=True)
    return Bins(edges, [(n / count, label) for n, label in texts])


def histogram(title: str, sides: Sides, note: str = "") -> str:
    """The figure; empty if all values are the same."""
    known = {side: values for side, values in sides.items() if values}
    every = [value for values in known.values() for value in values]
    if len(set(every)) < 2:
        return ""
    bins = bins_of(every)
    shares = [bins.shares(values) for values in known.values()]
    axes = Axes([0.0, *(max(own) for own in shares)], 1.0, percent=True, wide=True)
    keys = "".join(
        f"<span>{swatch(n)}<span>{brief(side)}</span> <b>{len(values):,}</b></span>"
        for n, (side, values) in enumerate(known.items())
    )
    below = "".join(
        f'<span class="x" style="left:{place:.2%}">{label}</span>' for place, label in bins.labels
    )
    return (
        f'<figure class="chart wide"><figcaption><h3>{brief(title)}</h3>'
        f'<div class="legend">{keys}</div></figcaption>'
        f'<div class="plot"><svg viewBox="0 0 {BOX} {BOX}" preserveAspectRatio="none" role="img" '
        f'aria-label="{_spoken(title, known)}">{_bars(shares, axes)}</svg>'
        f"{value_texts(axes)}{below}</div>" + (f"<p>{note}</p>" if note else "") + "</figure>"
    )


def _bars(shares: Sequence[Sequence[float]], axes: Axes) -> str:
    """The bars of all sides, side by side in each bin."""
    width = BOX / len(shares[0])
    bar = (1 - GAP) * width / len(shares)
    paths = [f'<path class="grid" d="{"".join(f"M0 {axes.y(y):.5g}H{BOX}" for y in axes.ticks)}"/>']
    for side, own in enumerate(shares):
        bars = "".join(
            f"M{left:.5g} {BOX}V{axes.y(share):.5g}h{bar:.5g}V{BOX}Z"
            for n, share in enumerate(own)
            if share
            for left in [(n + GAP / 2) * width + side * bar]
        )
        paths.append(f'<path class="bar c{side}" d="{bars}"/>')
    return "".join(paths)


def _spoken(title: str, sides: Sides) -> str:
    """The figure in words, as HTML, for screen readers."""
    means = (
        f"{brief(side)}: mean {display(math.fsum(v / len(values) for v in values))}"
        for side, values in sides.items()
    )
    return f"{brief(title)}. {'; '.join(means)}"
