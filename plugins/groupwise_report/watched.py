"""The watched rewards on a run's page: charts and alarms."""

from collections.abc import Sequence

from groupwise_report.charts import Chart, Series
from groupwise_report.run_data import RunData
from groupwise_report.wording import brief, display, number

_ONE_SCALE = 10  # curves whose largest values differ by more than this factor get their own axes


def watched_charts(run: RunData) -> list[Chart]:
    """The held-out means of the watched rewards, on common axes if their scales are similar."""
    names = run.names("evaluation/watch/")
    series = [
        Series(name=each, points=run.points(f"evaluation/watch/{each}"), colour=i, dots=True)
        for i, each in enumerate(names)
    ]
    note = "Measured on held-out completions, never trained on."
    if _one_scale(series):
        raised = sorted({step for each in names for step in alarm_steps(run, each)})
        return [_chart("Watched", series, note + _at(raised))]
    return [_chart(f"Watched: {s.name}", [s], note + _at(alarm_steps(run, s.name))) for s in series]


def alarm_steps(run: RunData, reward: str) -> list[float]:
    """The evaluations at which a watched reward gave an alarm."""
    return [step for step, raised in run.points(f"alarm/{reward}") if raised]


def alarm_lines(run: RunData) -> list[str]:
    """A sentence of HTML for each watched reward that ever gave an alarm."""
    names = run.names("alarm/")
    return [_line(run, each, steps) for each in names if (steps := alarm_steps(run, each))]


def _line(run: RunData, reward: str, steps: Sequence[float]) -> str:
    last = steps[-1]
    earlier = f" Earlier alarms: {_steps(steps[:-1])}." if steps[:-1] else ""
    measured = [step for step, _ in run.points(f"alarm/{reward}")]
    since = number(dict(run.points(f"alarm_since/{reward}")).get(last)) or 0
    best = f" since its best evaluation, at step {since:.0f}" if since else ""
    over = f" At step {measured[-1]:.0f} there was none." if measured[-1] > last else ""
    return (
        f"<b>Alarm at step {last:.0f}.</b> On held-out prompts the trained reward had risen"
        f"{_change(run, 'reward', last)} while <b>{brief(reward)}</b>, which is watched and not "
        f"trained on, had worsened{best}{_change(run, f'watch/{reward}', last, since)}, both "
        f"beyond noise. "
        f"The policy may exploit the trained reward: read the completions.{earlier}{over}"
    )


def _change(run: RunData, key: str, step: float, since: float = 0) -> str:
    """The value at step `since`, or the first one, and that at `step`, where they are known."""
    values = dict(run.points(f"evaluation/{key}"))
    now = values.get(step)
    if now is None:
        return ""
    before = values.get(since, next(iter(values.values())))
    return f" ({display(before)} → {display(now)})"


def _chart(title: str, series: Sequence[Series], note: str) -> Chart:
    return Chart(title=title, series=series, note=note, wide=True)


def _one_scale(series: Sequence[Series]) -> bool:
    sizes = [max(abs(y) for _, y in s.points) for s in series if s.points]
    return not sizes or max(sizes) <= _ONE_SCALE * min(sizes)


def _at(steps: Sequence[float]) -> str:
    return f" Alarm {_steps(steps)}." if steps else ""


def _steps(steps: Sequence[float]) -> str:
    numbers = [f"{step:.0f}" for step in steps]
    listed = numbers[0] if len(numbers) == 1 else f"{', '.join(numbers[:-1])} and {numbers[-1]}"
    return f"at step{'' if len(numbers) == 1 else 's'} {listed}"
