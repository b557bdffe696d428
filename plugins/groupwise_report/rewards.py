"""Charts of a run's rewards: curves, bounds, and weights that changed."""

from collections.abc import Mapping

from groupwise_report.charts import Chart, Series
from groupwise_report.run_data import RunData
from groupwise_report.wording import display, number

_BOUNDS = {"at_most": "at most", "at_least": "at least"}


def reward_charts(run: RunData) -> list[Chart]:
    """The curve of every reward, then the weights of schedules and multipliers of constraints.

    None for a reward that is the total or the accuracy, which have curves already.
    """
    bounds = _bounds(run)
    names = [name for name in _names(run) if name in bounds or not has_a_curve(run, name)]
    rewards = [_reward(run, name, bounds.get(name, {}), wide=len(names) < 3) for name in names]
    return [*rewards, *_weights(run)]


def has_a_curve(run: RunData, name: str) -> bool:
    """Whether this reward is the total reward, or is the accuracy with all its values 0 or 1."""
    return name == total_reward(run) or (name == run.accuracy and _is(run, name, "accuracy"))


def total_reward(run: RunData) -> str:
    """The name of the one reward that is the total in training and evaluations; "" if none is."""
    names = _names(run)
    return names[0] if len(names) == 1 and _is(run, names[0], "reward") else ""


def _is(run: RunData, name: str, key: str) -> bool:
    """Whether a reward has the values of a metric in training and evaluations."""
    prefixes = ("", "evaluation/")
    return all(run.points(f"{p}rewards/{name}") == run.points(f"{p}{key}") for p in prefixes)


def _names(run: RunData) -> list[str]:
    return [*dict.fromkeys([*run.names("rewards/"), *run.names("evaluation/rewards/")])]


def note_on_sums(run: RunData) -> str:
    """A sentence on the sum of all rewards, if weights changed during the run; else ""."""
    if not any(chart.series for chart in _weights(run)):
        return ""
    return (
        " Training sums the rewards with the weights of the step, evaluations with the last "
        "weights of a schedule and without constraints."
    )


def _reward(run: RunData, name: str, bounds: Mapping[str, float], *, wide: bool) -> Chart:
    dots = run.points(f"evaluation/rewards/{name}")
    series = [
        Series(name="training", points=run.points(f"rewards/{name}")),
        Series(name="held out", points=dots, colour=1, dots=True),
    ]
    words = " and ".join(f"{_BOUNDS[bound]} {display(at)}" for bound, at in bounds.items())
    return Chart(
        title=f"{'Constraint' if bounds else 'Reward'}: {name}",
        series=series,
        note=f"Its bound is {words} (dashed line)." if words else "",
        levels=[*bounds.values()],
        wide=wide,
    )


def _weights(run: RunData) -> list[Chart]:
    """Charts of the weights of schedules and of the multipliers of constraints."""
    notes = {
        "weights/": ("Weight", "Its weight in the total reward, by its schedule."),
        "multipliers/": (
            "Multiplier",
            "Its weight in the total reward; rises while the bound is violated.",
        ),
    }
    charts = []
    for prefix, (what, note) in notes.items():
        series = [
            Series(name=_readable(name), points=run.points(f"{prefix}{name}"), colour=colour)
            for colour, name in enumerate(run.names(prefix))
        ]
        # A line alone has no legend.
        title = f"{what}: {series[0].name}" if len(series) == 1 else f"{what}s"
        charts.append(Chart(title=title, series=series, note=note, smooth=False))
    return charts


def _readable(name: str) -> str:
    """`length/at_most` as "length at most"."""
    reward, _, bound = name.rpartition("/")
    return f"{reward} {_BOUNDS[bound]}" if reward and bound in _BOUNDS else name


def _bounds(run: RunData) -> dict[str, dict[str, float]]:
    """The bounds of constraints in the configuration, by reward."""
    sections = run.settings.get("rewards")
    bounds: dict[str, dict[str, float]] = {}
    for section in sections if isinstance(sections, list) else []:
        constraint = section.get("constraint") if isinstance(section, Mapping) else None
        if isinstance(constraint, Mapping):
            name = section.get("label") or str(section.get("name")).rpartition(":")[2]
            stated = {bound: number(constraint.get(bound)) for bound in _BOUNDS}
            bounds[str(name)] = {b: value for b, value in stated.items() if value is not None}
    return bounds
