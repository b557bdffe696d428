"""Charts over training steps, as HTML: inline SVG for lines and bars, HTML for labels.

The SVG stretches to its box while strokes keep their width, and labels are placed in percent, so
text has the same size on a phone, a wide screen and paper. Names and titles are escaped here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from groupwise_report.axes import BOX, Axes, ticks
from groupwise_report.wording import brief, display, text

Point = tuple[float, float]
Spread = tuple[float, float, float]

SMOOTH_FROM = 60  # points; shorter lines are not smoothed
MOST_POINTS = 800  # a line is thinned to about this many
MOST_VALUES = 400  # of a line, for the page's script; more are averaged
MOST_BARS = 60
MANY_DOTS = 40  # more are drawn smaller
COLOURS = 6


@dataclass(frozen=True, kw_only=True)
class Series:
    """One quantity over steps: `points` are (step, value).

    `dots` is for rare measurements, such as evaluations. `spread` holds (step, low, high): a band
    behind a line, bars through dots.
    """

    name: str
    points: Sequence[Point]
    colour: int = 0
    dots: bool = False
    spread: Sequence[Spread] = ()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The series on one pair of axes, with a title and a note on how to read them.

    levels: values marked by a dashed line across the chart; named: the legend names the series
    even if there is only one.
    """

    title: str
    series: Sequence[Series]
    unit: str = ""
    note: str = ""
    percent: bool = False
    smooth: bool = True
    wide: bool = False
    levels: Sequence[float] = ()
    named: bool = False


def smooth(values: Sequence[float]) -> list[float]:
    """A moving average applied twice, over a twentieth of the values: light, and without lag."""
    radius = max(2, len(values) // 40)
    for _ in range(2):
        sums = [0.0]
        for value in values:
            sums.append(sums[-1] + value)
        edges = [(max(0, i - radius), min(len(values), i + radius + 1)) for i in range(len(values))]
        values = [(sums[end] - sums[start]) / (end - start) for start, end in edges]
    return list(values)


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """About `most` points: the lowest and the highest of each stretch, so that spikes stay."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: set[Point] = {points[0], points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept |= {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
    return sorted(kept)


def averaged(points: Sequence[Point], most: int = MOST_VALUES) -> list[Point]:
    """At most `most` points: the means of equally long stretches, each at its middle."""
    size = math.ceil(len(points) / most)
    stretches = (points[start : start + size] for start in range(0, len(points), max(size, 1)))
    return [(s[len(s) // 2][0], sum(y for _, y in s) / len(s)) for s in stretches]


def _path(kind: str, colour: int, data: str, more: str = "") -> str:
    return f'<path class="{kind} {_style(colour)}"{more} d="{data}"/>' if data else ""


def _style(colour: int) -> str:
    """CSS classes of a line or its key: after the last colour, the same colours, dashed."""
    return f"c{colour % COLOURS}" + (f" dashed{min(colour // COLOURS, 2)}" * (colour >= COLOURS))


def _line(points: Sequence[Point], axes: Axes) -> str:
    return "M" + "L".join(axes.at(*point) for point in thin(points))


def _dots(points: Sequence[Point], axes: Axes) -> str:
    # A line of no length with round ends stays a circle however the box is stretched.
    return "".join(f"M{axes.at(*point)}h0" for point in points)


def _draw_dots(series: Series, axes: Axes) -> str:
    bars = "".join(f"M{axes.at(x, low)}L{axes.at(x, high)}" for x, low, high in series.spread)
    kind = "dot many" if len(series.points) > MANY_DOTS else "dot"
    return (
        _path("whisker", series.colour, bars)
        + _path("thread", series.colour, _line(series.points, axes))
        + _path(kind, series.colour, _dots(series.points, axes))
    )


def _draw_band(series: Series, axes: Axes) -> str:
    if len(series.spread) < 2:
        return ""
    lower = _line([(x, low) for x, low, _ in series.spread], axes)
    upper = thin([(x, high) for x, _, high in series.spread])
    back = "L".join(axes.at(*point) for point in reversed(upper))
    return _path("band", series.colour, f"{lower}L{back}Z")


def _draw_line(series: Series, axes: Axes, mark: str, *, smoothed: bool) -> str:
    """mark: an attribute by which the page's script finds the line, to smooth it otherwise."""
    if len(series.points) == 1:
        return _draw_dots(series, axes)
    line = _line(series.points, axes)
    if not smoothed:
        return _draw_band(series, axes) + _path("line", series.colour, line, mark)
    soft = _smoothed(series.points)
    band = replace(series, spread=_smoothed_spread(series.spread))
    return (
        _draw_band(band, axes)
        + _path("raw", series.colour, line)
        + _path("line", series.colour, _line(soft, axes), mark)
    )


def _smoothed(points: Sequence[Point]) -> list[Point]:
    return list(zip((x for x, _ in points), smooth([y for _, y in points]), strict=True))


def _smoothed_spread(spread: Sequence[Spread]) -> list[Spread]:
    low, high = (smooth([row[i] for row in spread]) for i in (1, 2))
    return [(row[0], a, b) for row, a, b in zip(spread, low, high, strict=True)]


def draw(chart: Chart, last_step: float) -> str:
    """The chart as a `<figure>`; empty where no series has a point."""
    shown = [series for series in chart.series if series.points]
    if not shown:
        return ""
    values = [y for series in shown for _, y in series.points]
    values += [y for series in shown for row in series.spread for y in row[1:]]
    axes = Axes([*values, *chart.levels], last_step, percent=chart.percent, wide=chart.wide)
    is_long = max(len(s.points) for s in shown) > SMOOTH_FROM  # all lines of a chart are smoothed
    smoothed = chart.smooth and is_long
    lines = [
        _draw_line(s, axes, f' data-line="{n}"' * chart.smooth, smoothed=smoothed)
        for n, s in enumerate(shown)
        if not s.dots
    ]
    return _figure(
        replace(chart, series=shown), axes, lines + [_draw_dots(s, axes) for s in shown if s.dots]
    )


def draw_stacked(chart: Chart, last_step: float) -> str:
    """The chart's series as stacked bars, the first at the bottom."""
    shown = [series for series in chart.series if series.points]
    if not shown:
        return ""
    size = max(1, math.ceil(last_step / MOST_BARS))
    bars = [replace(s, points=_binned(s.points, size, int(last_step))) for s in shown]
    tops: dict[float, float] = {}
    for series in bars:
        for x, y in series.points:
            tops[x] = tops.get(x, 0.0) + y
    axes = Axes([0.0, *tops.values()], last_step, percent=chart.percent, wide=chart.wide)
    ground: dict[float, float] = {}
    marks = [_bar_stack(s, size, axes, ground) for s in bars]
    note = f" Each bar is the mean of {size} steps." if size > 1 else ""
    return _figure(replace(chart, series=bars, note=chart.note + note), axes, marks)


def _binned(points: Sequence[Point], size: int, last_step: int) -> list[Point]:
    """The mean over every `size` steps; a step without a value counts as 0."""
    sums = dict.fromkeys(range(0, max(last_step, 1), size), 0.0)
    for x, y in points:
        if x >= 1:  # step 0, before training, is not on this axis
            sums[(int(x) - 1) // size * size] += y
    return [(min(b + size, last_step), s / min(size, last_step - b)) for b, s in sums.items()]


def _bar_stack(series: Series, size: int, axes: Axes, ground: dict[float, float]) -> str:
    data, edge = [], 0.0
    for x, y in series.points:
        base = ground.get(x, 0.0)
        ground[x] = base + y
        gap = 0.12 * min(size, x - edge)
        if y > 0:
            left, right = axes.x(edge + gap), axes.x(x)
            data.append(f"M{left:.5g} {axes.y(base):.5g}V{axes.y(base + y):.5g}H{right:.5g}")
            data.append(f"V{axes.y(base):.5g}Z")
        edge = x
    return _path("bar", series.colour, "".join(data))


def _figure(chart: Chart, axes: Axes, marks: Sequence[str]) -> str:
    series = [[[x, float(f"{y:.4g}")] for x, y in averaged(s.points)] for s in chart.series]
    data = text(json.dumps(series, separators=(",", ":")))
    grid, across = (
        "".join(f"M0 {axes.y(at):.5g}H{BOX}" for at in where)
        for where in (axes.ticks, chart.levels)
    )
    levels = f'<path class="level" d="{across}"/>' if across else ""
    return (
        f'<figure class="chart{" wide" if chart.wide else ""}" data-percent="{int(chart.percent)}" '
        f'data-range="{axes.low:.6g} {axes.high:.6g}" data-series="{data}">'
        f"<figcaption><h3>{brief(chart.title)}</h3>{_unit(chart)}{_legend(chart)}</figcaption>"
        f'<div class="plot"><svg viewBox="0 0 {BOX} {BOX}" preserveAspectRatio="none" role="img" '
        f'aria-label="{_spoken(chart)}">'
        f'<path class="grid" d="{grid}"/>{levels}{"".join(marks)}</svg>'
        f'{_tick_texts(axes)}<i class="cursor" hidden></i></div>'
        + (f"<p>{text(chart.note)}</p>" if chart.note else "")
        + "</figure>"
    )


def value_texts(axes: Axes) -> str:
    """The labels of the vertical axis."""
    return "".join(
        f'<span class="y" style="top:{axes.y(value) / BOX:.2%}">{label}</span>'
        for value, label in zip(axes.ticks, axes.labels, strict=True)
    )


def _tick_texts(axes: Axes) -> str:
    texts = [value_texts(axes)]
    for step in ticks(0, axes.last_step, 5):
        if step <= axes.last_step and step == int(step):
            label = f"{step:,.0f}" if step else "step 0"
            place = f"left:{axes.x(step) / BOX:.2%}"
            texts.append(f'<span class="x" style="{place}">{label}</span>')
    return "".join(texts)


def _unit(chart: Chart) -> str:
    return f'<span class="unit">{brief(chart.unit)}</span>' if chart.unit else ""


def swatch(colour: int) -> str:
    """The mark of a line's colour before its name."""
    return f'<i class="key {_style(colour)}"></i>'


def _legend(chart: Chart) -> str:
    """Names with colour and last value; for a single line only the value."""
    named = chart.named or len(chart.series) > 1
    items = []
    for series in chart.series:
        mark = f"{swatch(series.colour)}<span>{brief(series.name)}</span> "
        value = display(series.points[-1][1], percent=chart.percent)
        items.append(f"<span>{mark if named else ''}<b>{value}</b></span>")
    return f'<div class="legend{"" if named else " alone"}">{"".join(items)}</div>'


def _spoken(chart: Chart) -> str:
    """The chart in words, as HTML, for screen readers."""
    parts = []
    for series in chart.series:
        (first, start), (last, end) = series.points[0], series.points[-1]
        a, b = (display(value, percent=chart.percent) for value in (start, end))
        parts.append(f"{brief(series.name)}: {a} at step {first:.0f}, {b} at step {last:.0f}")
    return f"{brief(chart.title)}. {'; '.join(parts)}"


def share_bar(shares: Mapping[str, tuple[float, int]]) -> str:
    """One horizontal bar cut into named (share, colour) parts."""
    parts = "".join(
        f'<i class="c{colour % COLOURS}" style="width:{share:.2%}" title="{brief(part)}"></i>'
        for part, (share, colour) in shares.items()
    )
    return f'<div class="shares" role="presentation">{parts}</div>'
