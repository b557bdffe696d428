"""Charts of a run with several sources of prompts: a line for each source on common axes."""

from groupwise_report.charts import Chart, Series
from groupwise_report.run_data import RunData


def source_charts(run: RunData) -> list[Chart]:
    """Reward and length of each source in training, and its accuracy; [] without a mixture."""
    sources = [name for name in run.names("reward/") if name not in run.learners]
    if not sources:
        return []
    judged = f"{run.accuracy_title} by source"
    charts = [
        _chart(run, "Reward by source", "reward/", sources),
        _chart(run, f"{judged}, in training", "accuracy/", sources, percent=True),
        _chart(run, f"{judged}, held out", "evaluation/accuracy/", sources, percent=True),
        _chart(run, "Length by source", "length/", sources),
    ]
    return [chart for chart in charts if chart.series]


def _chart(
    run: RunData, title: str, prefix: str, sources: list[str], *, percent: bool = False
) -> Chart:
    dots = prefix.startswith("evaluation/")
    series = [
        Series(name=label, points=run.points(f"{prefix}{label}"), colour=colour, dots=dots)
        for colour, label in enumerate(sources)
    ]
    lines = [line for line in series if line.points]
    return Chart(title=title, series=lines, note="", percent=percent, wide=True)
