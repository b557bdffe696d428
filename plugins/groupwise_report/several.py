"""Several runs as one HTML page: their results, differences of configurations, and curves."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from groupwise_report.charts import COLOURS, Chart, Series, swatch
from groupwise_report.differences import EN_DASH, differences
from groupwise_report.document import (
    charts,
    document,
    section,
    table,
)
from groupwise_report.live import Live
from groupwise_report.page import CHARTS, how_to_read, intervals
from groupwise_report.run_data import Row, RunData, titled_accuracy
from groupwise_report.tiles import interval
from groupwise_report.wording import brief, display, duration, number

_MEASURES = {  # key of an evaluation: heading
    "accuracy": "accuracy, sampled",
    "greedy_accuracy": "accuracy, greedy",
    "reward": "reward, sampled",
    "greedy_reward": "reward, greedy",
    "length": "length",
}


def page(runs: Sequence[RunData], live: Live | None = None) -> str:
    """The whole page; live: the state of the runs, if the page is served while they go on."""
    names = labels([run.folder for run in runs])
    # A name always has the colour of its lines before it.
    heads = [f"{swatch(number)}{brief(name)}" for number, name in enumerate(names)]
    last = max(run.last_step for run in runs)
    sections = [
        f"<header><h1>{len(runs)} runs</h1>{live.line if live else ''}</header>",
        section("Before and after", _BEFORE, _results(runs, heads)),
        section("What differs", "Keys of the configuration whose values differ between runs.",
                differences(runs, heads)),
        section("What they learned", how_to_read(runs), charts(_learned(runs, names), last)),
        section("How training went", "", charts(_trained(runs, names), last)),
        section("Time and memory", "", charts(_time(runs, names), last)),
    ]  # fmt: skip
    title, version = " · ".join(names), live.version if live else None
    return document(title, sections, last_step=last, version=version)


_BEFORE = (
    "Measured on held-out prompts, with 95 % intervals for their number. Compare only runs that "
    "hold out the same prompts."
)


def labels(folders: Sequence[Path]) -> list[str]:
    """The name of each folder; if names are equal, the parts of the paths that differ."""
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    parts = [path.parts for path in paths]
    shared = len(Path(os.path.commonpath(paths)).parts)
    parts = [each[shared:] for each in parts]
    while all(len(each) > 1 for each in parts) and len({each[-1] for each in parts}) == 1:
        parts = [each[:-1] for each in parts]
    return ["/".join(each) or name for each, name in zip(parts, names, strict=True)]


def _results(runs: Sequence[RunData], heads: Sequence[str]) -> str:
    measured = [run.evaluations() for run in runs]
    known = {k for before, after, _ in measured for k in (*before, *after)}
    shown = [each for each in _MEASURES if each in known]
    rows = []
    for run, head, (before, after, _) in zip(runs, heads, measured, strict=True):
        seconds = number(run.result.get("seconds"))
        took = duration(seconds) if seconds is not None else EN_DASH
        cells = (_change(each, before, after) for each in shown)
        rows.append((head, run.progress if run.steps else "no step yet", took, *cells))
    words = [_MEASURES[each].replace("accuracy", titled_accuracy(runs).lower()) for each in shown]
    heads = ("run", "steps", "time", *map(brief, words))
    return table("", heads, rows, kind="whole")


def _change(measure: str, before: Row, after: Row) -> str:
    """Before and after, as `25 % → 75 %`, with their intervals."""
    percent = measure.endswith("accuracy")
    sides = [(number(row.get(measure)), row) for row in (before, after)]
    texts = [EN_DASH if v is None else display(v, percent=percent) for v, _ in sides]
    if texts == [EN_DASH, EN_DASH]:
        return EN_DASH
    ranges = [r for v, row in sides if percent and (r := interval(v, row))]
    small = f"<small>{' → '.join(ranges)}</small>" if ranges else ""
    return f"<span>{texts[0]} →</span> <b>{texts[1]}</b>{small}"


def _learned(runs: Sequence[RunData], names: Sequence[str]) -> Iterator[Chart]:
    rewards = dict.fromkeys(name for run in runs for name in run.names("rewards/"))
    watched = dict.fromkeys(name for run in runs for name in run.names("evaluation/watch/"))
    note = "Of held-out prompts; vertical bars: 95 % intervals for the number of prompts."
    yield _over(runs, names, "reward", "Reward, in training", wide=True)
    yield _over(runs, names, "evaluation/reward", "Reward, held out", wide=True, dots=True)
    for measure, title in (("accuracy", "sampled"), ("greedy_accuracy", "greedy")):
        yield _over(
            runs, names, f"evaluation/{measure}", f"{titled_accuracy(runs)}, held out, {title}",
            note=note, percent=True, wide=True, dots=True,
        )  # fmt: skip
    title = f"{titled_accuracy(runs)}, in training"
    yield _over(runs, names, "accuracy", title, percent=True, wide=True)
    for reward in rewards:
        yield _over(runs, names, f"rewards/{reward}", f"Reward: {reward}", wide=len(rewards) < 3)
    for reward in watched:
        title = f"Watched: {reward}"
        yield _over(runs, names, f"evaluation/watch/{reward}", title, wide=True, dots=True)


def _trained(runs: Sequence[RunData], names: Sequence[str]) -> Iterator[Chart]:
    units = {run.unit for run in runs if run.steps}
    unit = units.pop() if len(units) == 1 else "decisions"
    for title, its_unit, metric, _, percent, note in CHARTS:
        smooth = title != "Learning rate"
        yield _over(runs, names, metric, title, unit=its_unit, percent=percent, note=note,
                    smooth=smooth)  # fmt: skip
    yield _over(runs, names, "length", "Length", unit=unit)


def _time(runs: Sequence[RunData], names: Sequence[str]) -> Iterator[Chart]:
    lines = [
        Series(name=name, points=run.step_seconds, colour=n)
        for n, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    yield Chart(title="Time of a step", unit="seconds", series=lines, wide=True, named=True)
    yield _over(runs, names, "decisions_per_second", "Throughput", unit="a second", wide=True)
    for key, title in (("device", "Memory of the GPU"), ("host", "Memory of the machine")):
        yield _over(runs, names, f"memory/{key}", title, unit="GiB", wide=True)


def _over(
    runs: Sequence[RunData],
    names: Sequence[str],
    metric: str,
    title: str,
    *,
    dots: bool = False,
    unit: str = "",
    note: str = "",
    percent: bool = False,
    smooth: bool = True,
    wide: bool = False,
) -> Chart:
    """One metric of all runs; in a run with several policies, a line for each that has it."""
    series: list[Series] = []
    for number_of_run, (run, name) in enumerate(zip(runs, names, strict=True)):
        lines = {f"{name} · {label}": f"{label}/{metric}" for label in run.learners}
        if run.points(metric):
            lines = {name: metric}
        for number_of_line, (each, line) in enumerate(lines.items()):
            spread = intervals(run, metric.removeprefix("evaluation/")) if percent and dots else ()
            points, colour = run.points(line), number_of_run + COLOURS * number_of_line
            series.append(Series(name=each, points=points, colour=colour, dots=dots, spread=spread))
    return Chart(
        title=title, series=series, unit=unit, note=note, percent=percent, smooth=smooth,
        wide=wide, named=True,
    )  # fmt: skip
