"""Report: the model's metrics after each stage of the recipe, as a table and as a page.

The last run evaluates its model before and after training, on held-out sums and requests; a run of
no steps with the same settings measures the model of each earlier stage.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

STAGES = (
    ("base", "base_measured", "before"),
    ("R1-Zero: GRPO on the base", "zero_measured", "before"),
    ("1. cold start: SFT of the base", "cold_start_measured", "before"),
    ("2. GRPO", "first_measured", "before"),
    ("3. and 4. rejection sampling, SFT of the base", "last", "before"),
    ("5. GRPO on sums and requests: R1", "last", "after"),
)
"""Title, the run that evaluated the stage, and which of its evaluations."""
METRICS = {
    "accuracy": "accuracy",
    "format": "rewards/format",
    "English": "rewards/language",
    "corrects itself": "watch/self_correction",
    "tokens": "length/reasoning",
    "answers": "watch/answered",
    "refuses": "watch/refused",
}
"""By title: of sums, and then of harmless requests that are answered and harmful ones refused."""
SOURCES = ("reasoning", "general", "harmful")
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
    """A self-contained page: metrics, rejection sampling, and a prompt of each source by stages."""
    head = "".join(f"<th>{name}</th>" for name in ("after", *METRICS))
    rows = "".join(
        f"<tr><td>{html.escape(title)}</td>"
        + "".join(_cell([one[name] for one in of_seeds], name) for name in METRICS)
        + "</tr>"
        for title, of_seeds in figures.items()
    )
    names = ("zero", "first", "last")
    links = " ".join(
        f'<a href="seed{seed}/{name}/report.html">seed {seed}, {name}</a>'
        for seed in seeds
        for name in names
    )
    shown = "".join(
        f"<h2>{html.escape(prompt)}</h2>"
        + "".join(
            f"<h3>{html.escape(title)}</h3><pre>{html.escape(answer)}</pre>"
            for title, answer in answers.items()
        )
        for prompt, answers in (_one_prompt(out / f"seed{seeds[0]}", name) for name in SOURCES)
    )
    return (
        f'<!doctype html><meta charset="utf-8"><title>A small R1</title><style>{STYLE}</style>'
        f"<h1>A small R1</h1><p>Held-out prompts, the same after every stage; seeds "
        f"{', '.join(map(str, seeds))}.</p><table><tr>{head}</tr>{rows}</table>"
        f"<p>Rejection sampling: {html.escape(_kept(out, seeds))}. Runs: {links}</p>"
        f"<p>Below, a prompt of each source, with the greedy answers of seed {seeds[0]}.</p>{shown}"
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


def _one_prompt(folder: Path, source: str) -> tuple[str, dict[str, str]]:
    """A held-out prompt of a source, and its greedy answer after each stage."""
    answers, prompt = {}, ""
    for title, run, when in STAGES:
        path = folder / run / "samples" / f"{when}.jsonl"
        samples = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        first = next(each for each in samples if each["greedy"] and each["source"] == source)
        prompt, answers[title] = first["prompt"], first["completion"]
    return prompt, answers
