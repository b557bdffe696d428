"""The page of `on_gpu.py`: what was measured, in tables, and what that says about the goals."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_picture import draw
from race import smooth

PAGE, PICTURE, RESULTS = "page.md", "curve.svg", "results.jsonl"
GIB, GB, ABSENT = 2**30, 1e9, "-"
GOALS = {"against TRL": 3.0, "times the least": 1.3, "launches": 30.0, "waits": 1 / 16}
HALVES = ("sampling", "update")
WINDOW = 5
"""Steps over which the curve's accuracy is a mean."""
L = """Qwen2.5-0.5B's shape with random weights, 64 completions of 512 tokens in groups of 8,
prompts of 128; medians without the first step. "Times the least" is a token's time over that of
reading the weights and the cache once."""
CURVE = f"""SmolLM2-135M-Instruct, all of it trained, 16 groups of 16 completions of at most 512
tokens. Accuracy is that of the completions of {WINDOW} steps, whose prompts come up once."""
SD3 = """Stable Diffusion 3.5 Medium's shape with random weights, LoRA of rank 32, 24 images of 512
x 512 in 10 steps; the second step of training. "Estimated" is by `groupwise check`."""
THREE_STEPS = """Three steps each. A ratio of sampling to training is at most e to the power of the
largest mismatch; seconds are those of the last step."""
SIDES = {"trl": "TRL", "ours": "Groupwise"}
Line = Mapping[str, Any]
Lines = Mapping[str, Line]
"""The lines of a piece, by row."""


def read(out: Path) -> list[Line]:
    """The lines of the results; of a row that was measured again, all."""
    path = out / RESULTS
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def write(out: Path) -> None:
    """Writes the page and the picture of the curve, of all that has been measured."""
    lines: dict[str, dict[str, Line]] = {}
    for line in read(out):
        lines.setdefault(line["piece"], {})[line["row"]] = line
    curves = {side: points for side in SIDES if (points := read_points(out, side))}
    if curves:
        draw({SIDES[side]: accuracy(points) for side, points in curves.items()}, out / PICTURE)
    (out / PAGE).write_text(page(lines, curves), encoding="utf-8")


def read_points(out: Path, side: str) -> list[Line]:
    path = out / f"curve_{side}.jsonl"
    return [json.loads(x) for x in path.read_text("utf-8").splitlines()] if path.exists() else []


def page(pieces: Mapping[str, Lines], curves: Mapping[str, Sequence[Line]]) -> str:
    measured = {
        piece: {name: line for name, line in lines.items() if "problem" not in line}
        for piece, lines in pieces.items()
    }
    sections = [
        ("Tests", "Marked `gpu`.", tests(measured.get("tests", {}))),
        ("Decoding", L, decoding(measured)),
        ("A real curve", CURVE, curve(curves)),
        ("Images of a real size", SD3, images(measured.get("images", {}))),
        ("Precisions", THREE_STEPS, precisions(measured.get("precisions", {}))),
        ("Not measured", "", problems(pieces)),
    ]
    text = ["# What the GPU showed\n", on(measured)]
    text.append(f"By `python tests/benchmarks/on_gpu.py`; each row's command is in `{RESULTS}`.")
    if any(line.get("toy") for lines in pieces.values() for line in lines.values()):
        text.append("\n**A trial with tiny models: no figure on this page counts.**")
    text += verdicts(measured, curves)
    for title, about, lines in sections:
        if any(lines := list(lines)):
            text += [f"\n## {title}\n", *([f"{about}\n"] if about else []), *lines]
    return "\n".join(text) + "\n"


def on(measured: Mapping[str, Lines]) -> str:
    """What it was measured on and with."""
    line = measured.get("machine", {}).get("machine")
    if line is None:
        return "The machine was not measured."
    versions = ", ".join(f"{name} {v or 'absent'}" for name, v in line["versions"].items())
    rate = f"a copy reads and writes {line['bandwidth'] / 1e12:.2f} TB/s"
    return f"{line['device']}, {line['cores']} CPU cores; {versions}; {rate}."


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Nothing if there are no rows."""
    if rows:
        yield f"| {' | '.join(titles)} |"
        yield "|---" * len(titles) + "|"
        yield from (f"| {' | '.join(cells)} |" for cells in rows)


def number(value: float | None, form: str = ".2f") -> str:
    return ABSENT if value is None or math.isnan(value) else format(value, form)


# ---- what counts, in short


def verdicts(measured: Mapping[str, Lines], curves: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """A table of the questions, the answers, and the goals where there are any."""
    rows = []
    counts = measured.get("tests", {}).values()
    if counts:
        passed, failed = (sum(line[x] for line in counts) for x in ("passed", "failed"))
        rows.append(("`gpu` tests", f"{passed} passed, {failed} failed", "0 failed"))
    facts = decoding_facts(measured)
    for name, question, unit in (
        ("against TRL", "a step of L, against TRL's faster setting", " times as fast"),
        ("times the least", "a token of L, against reading weights and cache once", " times"),
        ("launches", "launches for a token", ""),
        ("waits", "waits of the host for a token", ""),
    ):
        if name in facts:
            least = name == "against TRL"
            reached = facts[name] >= GOALS[name] if least else facts[name] <= GOALS[name]
            goal = f"at {'least' if least else 'most'} {GOALS[name]:.3g}"
            verdict = f"{goal}: {'reached' if reached else '**missed**'}"
            rows.append((question, f"{facts[name]:.3g}{unit}", verdict))
    if curves:
        whole = common_seconds(curves)
        last = ", ".join(f"{SIDES[x]} {number(at(p, whole))}" for x, p in curves.items())
        minutes = whole / 60
        rows.append((f"accuracy after {minutes:.0f} minutes", last, ""))
    ratios = [
        line[f"{half} estimate"] / line[f"{half} peak"]
        for line in measured.get("images", {}).values()
        for half in HALVES
        if line[f"{half} peak"]
    ]
    if ratios:
        span = f"{min(ratios):.2f} to {max(ratios):.2f} times the peak"
        rows.append(("memory of image models, estimated", span, ""))
    yield from ["", *table(("question", "answer", "goal"), rows)]


def decoding_facts(measured: Mapping[str, Lines]) -> dict[str, float]:
    """What of the goals can be computed from what was measured."""
    lines, facts = measured.get("decoding", {}), dict[str, float]()
    trl = [step_seconds(lines[side]) for side in ("trl", "trl in bf16") if side in lines]
    if trl and "ours" in lines:
        facts["against TRL"] = min(trl) / step_seconds(lines["ours"])
    least = least_seconds(measured)
    if least and "ours" in lines:
        facts["times the least"] = token_seconds(lines["ours"]) / least
    for name in ("launches", "waits"):
        if name in lines.get("launches", {}):
            facts[name] = lines["launches"][name]
    return facts


# ---- the pieces


def tests(lines: Lines) -> Iterator[str]:
    names = ("passed", "failed", "skipped")
    rows = [(name, *(str(line[x]) for x in names)) for name, line in lines.items()]
    yield from table(("file", *names), rows)
    failed = [name for line in lines.values() for name in line["names"]]
    if failed:
        yield from ["\nFailed:\n", *(f"- `{name}`" for name in failed)]


def step_seconds(line: Line) -> float:
    """Without the first step, which plans and compiles."""
    return statistics.median(line["seconds"][1:])


def token_seconds(line: Line) -> float:
    """Seconds of sampling for a token of all rows."""
    return statistics.median(line["sampling"][1:]) / line["length"]


def least_seconds(measured: Mapping[str, Lines]) -> float | None:
    """Seconds of reading the weights and the cache once."""
    line = measured.get("decoding", {}).get("launches")
    rate = measured.get("machine", {}).get("machine", {}).get("bandwidth")
    return (line["weights"] + line["cache"]) / rate if line and rate else None


def decoding(measured: Mapping[str, Lines]) -> Iterator[str]:
    lines = measured.get("decoding", {})
    sides = {name: line for name, line in lines.items() if "sampling" in line}
    least = least_seconds(measured)
    rows = []
    for name, line in sides.items():
        step, token = step_seconds(line), token_seconds(line)
        rows.append(
            (
                name,
                number(step),
                number(statistics.median(line["sampling"][1:])),
                number(line["tokens"] / step, ",.0f"),
                number(1000 * token),
                number(token / least if least else None, ".1f"),
                number(line["peak"], ".1f"),
            )
        )
    titles = ("side", "seconds a step", "of them sampling", "tokens a second", "ms a token")
    yield from table((*titles, "times the least", "peak GB"), rows)
    counted = {name: line for name, line in lines.items() if "launches" in line}
    names = ("launches", "kernels", "copies", "waits")
    rows = [(name, *(number(line[x], ".3g") for x in names)) for name, line in counted.items()]
    yield from ["", *table(("for a token of all rows", *names), rows)]
    if least:
        line = lines["launches"]
        weights, cache = line["weights"] / GB, line["cache"] / GB
        yield (
            f"\nThe least: {weights:.2f} GB of weights in bf16 and {cache:.2f} GB of cache, read "
            f"once, take {1000 * least:.2f} ms a token."
        )


def accuracy(points: Sequence[Line]) -> list[tuple[float, float]]:
    """(seconds, mean accuracy of the last steps)."""
    return smooth([(p["step"], p["seconds"], p["accuracy"]) for p in points], WINDOW)


def common_seconds(curves: Mapping[str, Sequence[Line]]) -> float:
    """The time that all sides trained."""
    return min(points[-1]["seconds"] for points in curves.values())


def at(points: Sequence[Line], seconds: float) -> float | None:
    """The accuracy after so many seconds, None before the first step."""
    return next((mean for end, mean in reversed(accuracy(points)) if end <= seconds), None)


def curve(curves: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """Accuracy at quarters of the time that all sides trained, and what a side needed."""
    if not curves:
        return
    times = [common_seconds(curves) * quarter / 4 for quarter in (1, 2, 3, 4)]
    rows = []
    for side, points in curves.items():
        means = [number(at(points, time)) for time in times]
        last, first = points[-1], number(accuracy(points)[:WINDOW][-1][1])
        rate = sum(point["tokens"] for point in points) / last["seconds"]
        figures = (str(last["step"]), number(last["seconds"] / last["step"]), number(rate, ",.0f"))
        peak = number(max(point["peak"] for point in points) / GB, ".1f")
        rows.append((SIDES[side], first, *means, *figures, peak))
    titles = ["accuracy at first", *(f"after {time / 60:.2g} min" for time in times)]
    more = ("steps", "seconds a step", "tokens a second", "peak GB")
    yield from table(("side", *titles, *more), rows)
    yield f"\n![Accuracy against seconds of training, Groupwise and TRL]({PICTURE})"


def images(lines: Lines) -> Iterator[str]:
    titles = ["row", "sampling, s", "update, s"]
    rows = []
    for name, line in lines.items():
        cells = [name]
        cells += [number(line[f"{half} seconds"]) for half in HALVES]
        for half in HALVES:
            peak, estimate = line[f"{half} peak"], line[f"{half} estimate"]
            ratio = estimate / peak if peak else None
            cells += [number(peak / GIB), number(estimate / GIB), number(ratio)]
        rows.append(cells)
    for half in HALVES:
        titles += [f"{half}: peak GiB", "estimated", "estimated / peak"]
    yield from table(titles, rows)


def precisions(lines: Lines) -> Iterator[str]:
    columns = {
        "ratio": "ratio, at most",
        "mismatch/mean": "mismatch, mean",
        "mismatch/max": "mismatch, most",
        "clip_fraction": "clipped",
        "loss_scale": "loss scale",
        "overflows": "overflows",
        "skipped_updates": "skipped updates",
        "time/sample": "sampling, s",
        "time/update": "update, s",
    }
    rows = [(name, *(number(line.get(x), ".3g") for x in columns)) for name, line in lines.items()]
    yield from table(("example", *columns.values()), rows)


def problems(pieces: Mapping[str, Lines]) -> Iterator[str]:
    for piece, lines in pieces.items():
        for name, line in lines.items():
            if "problem" in line:
                yield f"- {piece}, {name}: {line['problem']}"
