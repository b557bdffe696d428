"""A run as one HTML page: what it learned, how training went, completions before and after.

The page is made from the run's folder only, and loads no script, style, font or image. Everything
from the run is escaped, and the content security policy forbids any script but ours. An interrupted
run has a page, too, without the missing parts.
"""

from collections.abc import Sequence

from groupwise_report.charts import (
    SMOOTH_FROM,
    Chart,
    Series,
    Spread,
    draw,
    draw_stacked,
    share_bar,
    swatch,
)
from groupwise_report.comparison import compare
from groupwise_report.completion_table import completion_table
from groupwise_report.document import (
    charts,
    document,
    folded,
    grid,
    section,
    table,
)
from groupwise_report.episodes import episodes
from groupwise_report.failures import failures
from groupwise_report.histogram import histograms
from groupwise_report.learners import learner_charts, of_each
from groupwise_report.live import Live
from groupwise_report.rewards import note_on_sums, reward_charts, total_reward
from groupwise_report.run_data import RunData
from groupwise_report.sources import source_charts
from groupwise_report.starts import starts
from groupwise_report.tiles import tiles
from groupwise_report.watched import alarm_lines, watched_charts
from groupwise_report.wording import brief, display, duration, number, text, wilson

_LOSS = (
    "The loss has no chart: the advantages of a group sum to 0, so its value shows no progress. "
    "Look at the reward."
)
_PHASES = ("sample", "reward", "update", "evaluate")  # first, to have the same colours in each run
CHARTS = (  # title, unit, key, name, percent, note
    ("KL", "nats", "kl", "KL", False,
     "Distance from the reference policy: mean over trained decisions."),
    ("Beta", "", "beta", "beta", False,
     "Weight of the KL: by its schedule, or raised and lowered to keep the KL at its target."),
    ("KL to the teacher", "nats", "teacher_kl", "KL", False,
     "Mean over trained decisions; 0 where the policy is its teacher."),
    ("Surprise at answers", "nats", "observation_loss", "-log_prob", False,
     "Of tools and environments, mean over the tokens of their answers."),
    ("Entropy", "nats", "entropy", "entropy", False,
     "Of the policy, mean over all decisions. Near 0 all samples of a prompt are alike."),
    ("Truncated", "", "truncated", "truncated", True, "Completions cut off by the length limit."),
    ("Clipped ratios", "", "clip_fraction", "clipped", True,
     "Decisions whose gradient the clip removed."),
    ("Groups without variance", "", "zero_variance", "share", True,
     "Completions in groups of equal reward: nothing is learned from them."),
    ("Mismatch", "nats", "mismatch/mean", "mismatch", False,
     "Mean |policy's log-prob \N{MINUS SIGN} sampler's| before the first update: near 0 is right."),
    ("Gradient norm", "", "grad_norm", "norm", False, "Before clipping."),
    ("Gradient entries that are 0", "", "zero_gradients", "share", True,
     "With a scaled loss: if many, gradients underflow in float16."),
    ("Learning rate", "", "learning_rate", "rate", False, ""),
)  # fmt: skip


def page(run: RunData, live: Live | None = None) -> str:
    """The whole page; live: the state of the run, if the page is served while the run goes on."""
    parts = (tiles, _learning, _training, episodes, failures, _time, _samples, completion_table,
             configuration, starts)  # fmt: skip
    sections = [_header(run, live), *(part(run) for part in parts)]
    version = live.version if live else None
    return document(run.name, sections, last_step=run.last_step, version=version)


def _header(run: RunData, live: Live | None) -> str:
    summary = [run.progress]
    seconds = number(run.result.get("seconds"))
    summary += [duration(seconds)] if seconds is not None else []
    for key in ("policy", "algorithm"):
        value = run.configured(key)
        summary += [f"{key} {brief(value)}"] if value else []
    warnings = []
    if not run.result and live is None:
        warnings.append("The run was interrupted or is still training: it has no result.json.")
    if run.unreadable:
        lines = f"{run.unreadable} line{'' if run.unreadable == 1 else 's'}"
        warnings.append(f"{lines} of metrics.jsonl could not be read and are left out.")
    note = live.line if live else ""
    note += f'<p class="warning">{" ".join(warnings)}</p>' if warnings else ""
    note += "".join(f'<p class="warning">{brief(each, most=1_000)}</p>' for each in run.warnings)
    note += "".join(f'<p class="warning alarm">{line}</p>' for line in alarm_lines(run))
    line = f'<p class="summary">{" · ".join(summary)}</p>'
    return f"<header><h1>{brief(run.name)}</h1>{line}{note}</header>"


def _learning(run: RunData) -> str:
    spread = dict(run.points("reward_std"))
    points = run.points("reward")
    band = [(x, y - spread[x], y + spread[x]) for x, y in points if x in spread]
    note = "Mean of all completions; the band is one standard deviation within groups."
    reward = Series(name="training", points=points, spread=band)
    rewards = [reward, _dots(run, "reward", "held out", 1)]
    note = (note if band else "") + note_on_sums(run)
    name = total_reward(run)
    title = f"Reward: {name}" if name else "Reward"
    shown = [Chart(title=title, series=rewards, note=note.strip(), wide=True)]
    shown += [_accuracy(run), *learner_charts(run), *source_charts(run)]
    shown += [*watched_charts(run), *reward_charts(run)]
    last = max(run.last_step, 1)
    figures = (*(draw(chart, last) for chart in shown), *histograms(run))
    return section("What it learned", how_to_read([run]), grid(figures))


def how_to_read(runs: Sequence[RunData]) -> str:
    """The sentences above the charts of these runs."""
    words = "All charts are over training steps. Point at one to read every chart at that step."
    if any(run.trained_steps > SMOOTH_FROM for run in runs):
        words += " Bold lines are smoothed; faint ones show each step."
    return words


def _accuracy(run: RunData) -> Chart:
    ranges = [intervals(run, key) for key in ("accuracy", "greedy_accuracy")]
    series = [
        Series(name="training", points=run.points("accuracy")),
        _dots(run, "accuracy", "held out, sampled", 1, ranges[0]),
        _dots(run, "greedy_accuracy", "held out, greedy", 2, ranges[1]),
    ]
    for i, name in enumerate(run.names("evaluation/pass_at_"), 3):
        series.append(_dots(run, f"pass_at_{name}", f"held out, pass@{name}", i))
    note = "" if series[0].points else "Of held-out prompts. "
    note += "Vertical bars: 95 % intervals for the number of prompts." if any(ranges) else ""
    return Chart(title=run.accuracy_title, series=series, note=note, percent=True, wide=True)


def _dots(run: RunData, key: str, name: str, colour: int, spread: Sequence[Spread] = ()) -> Series:
    points = run.points(f"evaluation/{key}")
    return Series(name=name, points=points, colour=colour, dots=True, spread=spread)


def intervals(run: RunData, key: str) -> list[Spread]:
    """Of each evaluation the 95% interval of a share, by how many prompts it was measured on."""
    counts = dict(run.points("evaluation/prompts"))
    points = run.points(f"evaluation/{key}")
    return [(x, *wilson(p, counts[x])) for x, p in points if counts.get(x, 0) > 0 and 0 <= p <= 1]


def _training(run: RunData) -> str:
    shown = []
    for title, unit, key, name, percent, note in CHARTS:
        if key == "truncated" and run.has_one_length and not any(y for _, y in run.points(key)):
            continue  # these cannot be cut off
        series = [Series(name=name, points=run.points(key), colour=0)]
        smooth = title != "Learning rate"  # a schedule has no noise
        chart = Chart(
            title=title, unit=unit, series=series, percent=percent, note=note, smooth=smooth
        )
        shown.append(of_each(run, chart, key))
        if key == "entropy":
            shown += _length(run)
    shown += _failed(run)
    shown += _weighting_and_replay(run)
    return section("How training went", _LOSS, charts(shown, run.last_step))


def _length(run: RunData) -> list[Chart]:
    """The chart of lengths; none if all completions have the same length."""
    series = [
        Series(name="mean", points=run.points("length")),
        Series(name="longest", points=run.points("length_max"), colour=1),
        _dots(run, "length", "held out, mean", 2),
    ]
    chart = of_each(run, Chart(title="Length", unit=run.unit, series=series), "length")
    return [] if run.has_one_length else [chart]


def _failed(run: RunData) -> list[Chart]:
    """The chart of failed completions; none if there were none."""
    points = run.points("failed")
    note = "Completions of a step without reward and gradient, since they or a reward failed."
    chart = Chart(title="Failed", series=[Series(name="failed", points=points)], note=note)
    return [of_each(run, chart, "failed")] if any(count for _, count in points) else []


def _weighting_and_replay(run: RunData) -> list[Chart]:
    """Charts of prompts weighted by success, and of replayed completions."""
    kinds = ("always right", "never right", "between")
    known = [
        Series(name=kind, points=run.points(f"prompts/{kind.replace(' ', '_')}"), colour=number)
        for number, kind in enumerate(kinds)
    ]
    replayed = Series(name="replayed", points=run.points("replay/share"))
    note = "Shares of the prompts drawn so far. Only those between give a training signal."
    return [
        Chart(title="Prompts by success", series=known, percent=True, note=note),
        Chart(title="Replayed completions", series=[replayed], percent=True),
    ]


def _time(run: RunData) -> str:
    names = run.names("time/")
    names.sort(key=lambda name: _PHASES.index(name) if name in _PHASES else len(_PHASES))
    phases = [
        Series(name=name, points=run.points(f"time/{name}"), colour=i)
        for i, name in enumerate(names)
    ]
    stacked = Chart(title="Time by phase", unit="seconds a step", series=phases, wide=True)
    speed = Series(name="speed", points=run.points("decisions_per_second"))
    throughput = Chart(title="Throughput", unit=f"{run.unit} a second", series=[speed], wide=True)
    last = max(run.last_step, 1)
    memory = (draw(chart, last) for chart in _memory(run))
    parts = (
        draw_stacked(stacked, last),
        draw(throughput, last),
        _phases(phases),
        _rewards_time(run),
        *memory,
    )
    return section("Time and memory", "", grid(parts))


def _memory(run: RunData) -> list[Chart]:
    """The memory of a step on the GPU and on the machine."""
    device = {"device": "tensors", "device_reserved": "held by torch"}
    on_device = [
        Series(name=name, points=run.points(f"memory/{key}"), colour=n)
        for n, (key, name) in enumerate(device.items())
    ]
    host = Series(name="process", points=run.points("memory/host"))
    return [
        Chart(title="Memory of the GPU", unit="GiB", series=on_device, wide=True,
              note="The most in each step, of the process that takes most."),
        Chart(title="Memory of the machine", unit="GiB", series=[host], wide=True,
              note="Of the process and its children, at the end of each step."),
    ]  # fmt: skip


def _phases(phases: Sequence[Series]) -> str:
    totals = {s.name: (sum(y for _, y in s.points), len(s.points), s.colour) for s in phases}
    whole = sum(total for total, _, _ in totals.values())
    if whole <= 0:
        return ""
    rows = [
        (
            f"{swatch(c)}{brief(phase)}",
            duration(total),
            display(total / whole, percent=True),
            duration(total / max(n, 1)),
        )
        for phase, (total, n, c) in totals.items()
    ]
    bar = share_bar({phase: (total / whole, c) for phase, (total, _, c) in totals.items()})
    return table("Total by phase", ("phase", "total", "share", "mean"), rows, bar)


def _rewards_time(run: RunData) -> str:
    rows = []
    for reward in run.names("reward_time/"):
        spent = [y for _, y in run.points(f"reward_time/{reward}")]
        if spent:
            rows.append(
                (brief(reward), *map(duration, (sum(spent), sum(spent) / len(spent), max(spent))))
            )
    return table("Time in each reward", ("reward", "total", "mean", "slowest"), rows)


def _samples(run: RunData) -> str:
    sides = run.samples["before"], run.samples["after"]
    every = [sample for side in sides for sample in side]
    has_images = any(sample.get("image") for sample in every)
    first = "the first one"
    if any(sample.get("greedy") for sample in every):
        first = "the greedy or the first sampled one, whichever changed more,"
    intro = (
        f"The same held-out prompts and {'noise' if has_images else 'seeds'} before and after "
        f"training. Completions whose reward changed most are shown, that which rose most first. "
        f"Of several for a prompt {first} is shown."
    )
    if any(sample.get("watched") for sample in every):
        intro += " Rewards in italics are watched, not trained on."
    return section("Before and after", intro, compare(run.folder, *sides))


def configuration(run: RunData) -> str:
    """The run's configuration, folded."""
    if not run.config.strip():
        return ""
    return folded("Configuration", f"<pre>{text(run.shown_config)}</pre>")
