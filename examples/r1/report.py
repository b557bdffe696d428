"""Report: the model's metrics after each stage of the recipe, as a table and as a page.

A GRPO run evaluates its model before and after training on the same held-out problems. So the
metrics of a supervised stage are those "before" the run that follows it.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

STAGES = (
    ("base", "zero", "before"),
    ("R1-Zero: GRPO on the base", "zero", "after"),
    ("1. cold start: SFT of the base", "first", "before"),
    ("2. GRPO", "first", "after"),
    ("3. and 4. rejection sampling, SFT of the base", "second", "before"),
    ("5. GRPO: R1", "second", "after"),
)
"""Title, the run that evaluated the stage, and which of its evaluations."""
METRICS = {
    "accuracy": "accuracy",
    "format": "rewards/format",
    "English": "rewards/language",
    "tokens": "length",
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1f2328; background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #d1d9e0 }
td:not(:first-child) { font-variant-numeric: tabular-nums; white-space: nowrap }
.bar { display: block; height: 4px; background: #0969da }
pre { background: #f6f8fa; padding: .6rem; white-space: pre-wrap }
"""


def write(out: Path, seeds: Sequence[int]) -> str:
    """Write table.md and report.html of finished seeds; returns the table."""
    figures = {title: [_figures(out, seed, *of) for seed in seeds] for title, *of in STAGES}
    text = table(figures, seeds)
    (out / "table.md").write_text(text, encoding="utf-8")
    (out / "report.html").write_text(page(out, figures, seeds), encoding="utf-8")
    return f"{text}\n{out / 'report.html'}"


def _figures(out: Path, seed: int, run: str, when: str) -> dict[str, float]:
    result = json.loads((out / f"seed{seed}" / run / "result.json").read_text(encoding="utf-8"))
    return {name: result[when].get(key) for name, key in METRICS.items()}


def table(figures: Mapping[str, Sequence[Mapping[str, float]]], seeds: Sequence[int]) -> str:
    """Markdown, one line per stage, with the values of all seeds in order."""
    lines = [f"| after | {' | '.join(METRICS)} |", "|---|" + "---|" * len(METRICS)]
    for title, of_seeds in figures.items():
        cells = [", ".join(_number(one[name]) for one in of_seeds) for name in METRICS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, f"\nSeeds {', '.join(map(str, seeds))}.\n"])


def page(
    out: Path, figures: Mapping[str, Sequence[Mapping[str, float]]], seeds: Sequence[int]
) -> str:
    """A self-contained page: metrics, rejection sampling, and one problem after each stage."""
    head = "".join(f"<th>{name}</th>" for name in ("after", *METRICS))
    rows = "".join(
        f"<tr><td>{html.escape(title)}</td>"
        + "".join(_cell([one[name] for one in of_seeds], name) for name in METRICS)
        + "</tr>"
        for title, of_seeds in figures.items()
    )
    names = ("zero", "first", "second")
    links = " ".join(
        f'<a href="seed{seed}/{name}/report.html">seed {seed}, {name}</a>'
        for seed in seeds
        for name in names
    )
    problem, answers = _one_problem(out / f"seed{seeds[0]}")
    shown = "".join(
        f"<h3>{html.escape(title)}</h3><pre>{html.escape(answer)}</pre>"
        for title, answer in answers.items()
    )
    return (
        f'<!doctype html><meta charset="utf-8"><title>A small R1</title><style>{STYLE}</style>'
        f"<h1>A small R1</h1><p>Held-out problems, the same after every stage; seeds "
        f"{', '.join(map(str, seeds))}.</p><table><tr>{head}</tr>{rows}</table>"
        f"<p>Rejection sampling: {html.escape(_kept(out, seeds))}. Runs: {links}</p>"
        f"<h2>One problem after each stage</h2><p>{html.escape(problem)} (greedy answer, "
        f"seed {seeds[0]})</p>{shown}"
    )


def _cell(values: Sequence[float | None], name: str) -> str:
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else 0.0
    wide = 100 * mean if name != "tokens" else 0
    bar = f'<span class="bar" style="width:{wide:.0f}%"></span>' if wide else ""
    return f"<td>{', '.join(map(_number, values))}{bar}</td>"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1f}" if value > 1 else f"{value:.3f}"


def _kept(out: Path, seeds: Sequence[int]) -> str:
    """The last line of `groupwise sample`, for each seed."""
    logs = [out / f"seed{seed}" / "logs" / "sampled.log" for seed in seeds]
    lines = [line for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    return "; ".join(
        line.partition(": ")[0] for line in lines if ", kept " in line and ": " in line
    )


def _one_problem(folder: Path) -> tuple[str, dict[str, str]]:
    """A held-out problem, and its greedy answer after each stage."""
    answers, problem = {}, ""
    for title, run, when in STAGES:
        path = folder / run / "samples" / f"{when}.jsonl"
        samples = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        first = next(sample for sample in samples if sample["greedy"])
        problem, answers[title] = first["prompt"], first["completion"]
    return problem, answers
