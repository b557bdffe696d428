"""Episodes of several turns on a run's page: what environments count, why episodes ended, and
whether turns are trained on as they were sampled."""

import math
from collections.abc import Sequence

from groupwise_report.charts import Chart, Series
from groupwise_report.document import charts, grid, section, table
from groupwise_report.run_data import RunData
from groupwise_report.wording import display

_TOOLS = {  # column of an environment: title, unit, note
    "turns": ("Turns", "", "Completions in an episode."),
    "calls": ("Calls of tools", "", "In an episode, those that failed included."),
    "call_errors": (
        "Failed calls",
        "",
        "In an episode: malformed, of a tool that does not exist, too late, or the tool raised.",
    ),
    "tool_seconds": ("Time in tools", "seconds", "In an episode."),
    "tool_tokens": ("Tokens of tools", "", "What tools answered in an episode: read, not trained."),
}
_SHARES = {
    "as_sampled": "turns whose ids are those sampled",
    "continued": "later turns that went on in their rollout",
    "parsed": "calls that were parsed, of all that look like calls",
}


def episodes(run: RunData) -> str:
    """The section; empty for a run without environments of several turns."""
    shown = [*_columns(run), *_turn_rewards(run), *_ended(run)]
    intro = "Means over episodes." if any(chart.series for chart in shown) else ""
    return section("Turns and tools", intro, charts(shown, run.last_step), grid(_tables(run)))


def _columns(run: RunData) -> list[Chart]:
    """A chart of each column that the environment logs, those of tools first."""
    known = dict.fromkeys([*run.names("environment/"), *run.names("evaluation/environment/")])
    names = [name for name in _TOOLS if name in known] + [n for n in known if n not in _TOOLS]
    return [_column(run, name) for name in names]


def _column(run: RunData, name: str) -> Chart:
    title, unit, note = _TOOLS.get(name, (name, "", ""))
    series = [
        Series(name="training", points=run.points(f"environment/{name}")),
        Series(
            name="held out",
            points=run.points(f"evaluation/environment/{name}"),
            colour=1,
            dots=True,
        ),
    ]
    return Chart(title=title, unit=unit, series=series, note=note)


def _turn_rewards(run: RunData) -> list[Chart]:
    """The mean reward of the first, second, ... turn."""
    series = [
        Series(name=f"turn {turn}", points=run.points(f"turn_reward/{turn}"), colour=colour)
        for colour, turn in enumerate(run.names("turn_reward/"))
    ]
    return [Chart(title="Reward by turn", series=series, named=True)]


def _ended(run: RunData) -> list[Chart]:
    """The chart of why episodes of several turns ended; none if all ended by themselves."""
    steps = [step for step, _ in run.points("ended/length")]
    shares = {word: dict(run.points(f"ended/{word}")) for word in run.names("ended/")}
    series = [
        Series(name=word, points=[(step, own.get(step, 0.0)) for step in steps], colour=number)
        for number, (word, own) in enumerate(shares.items())
        if any(own.values())
    ]
    note = "Shares of episodes that the model did not end itself."
    chart = Chart(title="Why episodes ended", series=series, percent=True, note=note, named=True)
    return [chart] if series else []


def _tables(run: RunData) -> list[str]:
    shares = {words: _values(run, f"turns/{name}") for name, words in _SHARES.items()}
    rows = [
        (words, _share(values), _share([min(values)]), _share(values[-1:]))
        for words, values in shares.items()
        if values
    ]
    return [table("Turns as they are trained on", ("", "mean", "lowest", "last step"), rows)]


def _values(run: RunData, key: str) -> list[float]:
    return [value for _, value in run.points(key)]


def _share(values: Sequence[float]) -> str:
    """The mean in percent; 100 % only if all are 1."""
    mean = math.fsum(values) / len(values)
    if mean == 1:
        return "100 %"
    return (
        f"{math.floor(1000 * mean) / 10:.1f} %" if 0.99 < mean < 1 else display(mean, percent=True)
    )
