"""Charts of a run with several policies: a line for each policy on common axes."""

from dataclasses import replace

from groupwise_report.charts import Chart, Series
from groupwise_report.run_data import RunData

_HELD_OUT = {
    "accuracy": "by policy, sampled",
    "greedy_accuracy": "by policy, greedy",
}


def of_each(run: RunData, chart: Chart, key: str) -> Chart:
    """The chart with a line for each policy with a metric `LABEL/key`; unchanged if none has it."""
    lines = _lines(run, key)
    if not lines:
        return chart
    # A line alone has no legend.
    title = f"{chart.title}: {lines[0].name}" if len(lines) == 1 else chart.title
    return replace(chart, title=title, series=lines)


def learner_charts(run: RunData) -> list[Chart]:
    """The reward of each policy in training, and its accuracy on held-out prompts."""
    note = "Mean over each policy's own completions."
    if run.is_chain:
        note += (
            " A prompt that a policy writes has the mean reward of the completions that answer it, "
            "or of refusal: the value of the setting `refused`."
        )
    return [
        Chart(title="Reward by policy", series=_lines(run, "reward"), note=note, wide=True),
        *(_held_out(run, key, f"{run.accuracy_title} {title}") for key, title in _HELD_OUT.items()),
    ]


def _held_out(run: RunData, key: str, title: str) -> Chart:
    series = [
        Series(name=label, points=run.points(f"evaluation/{key}/{label}"), colour=colour, dots=True)
        for colour, label in enumerate(run.learners)
    ]
    return Chart(title=title, series=series, note="Of held-out prompts.", percent=True, wide=True)


def _lines(run: RunData, key: str) -> list[Series]:
    lines = [
        Series(name=label, points=run.points(f"{label}/{key}"), colour=colour)
        for colour, label in enumerate(run.learners)
    ]
    return [line for line in lines if line.points]
