"""Draw the pictures of docs/concepts.md; their numbers come from the functions that training uses.

python docs/pictures/concepts.py
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import torch

from groupwise import advantages, objective

HERE = Path(__file__).parent
INK, SOFT, PALE = "#24292f", "#c3cad2", "#f1f4f7"
BLUE, ORANGE, GREEN, RED = "#2f6fde", "#d9730d", "#2b8a3e", "#c92a2a"
TINTS = {BLUE: "#e3edfc", ORANGE: "#fdeedd", GREEN: "#e0f3e4", RED: "#fbe3e3", SOFT: PALE}


def text(
    x: float,
    y: float,
    words: str,
    *,
    at: str = "start",
    fill: str = INK,
    size: int = 13,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{at}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    words: str,
    *,
    colour: str = SOFT,
    note: str = "",
) -> str:
    """A rounded box with a line of text in its middle, and perhaps a smaller one below it."""
    middle = y + height / 2 + (-3 if note else 4.5)
    below = text(x + width / 2, middle + 16, note, at="middle", size=11) if note else ""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{TINTS[colour]}" '
        f'stroke="{colour}"/>{text(x + width / 2, middle, words, at="middle")}{below}'
    )


def arrow(x: float, y: float, to_x: float, to_y: float, colour: str = INK) -> str:
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{colour}" stroke-width="1.4" '
        f'marker-end="url(#head)"/>'
    )


def line(
    x: float, y: float, to_x: float, to_y: float, colour: str = SOFT, *, dashes: str = "none"
) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" '
        f'stroke-dasharray="{dashes}"/>'
    )


def curve(xs: Sequence[float], ys: Sequence[float], colour: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"/>'


def group() -> str:
    rows = [
        ("<think>17 + 25: 7 + 5 = 12, carry 1 …</think> 42", 1),
        ("<think>17 + 25 = 20 + 22</think> 42", 1),
        ("32", 0),
        ("<think>7 + 5 = 13 …</think> 43", 0),
    ]
    drawn = box(10, 92, 150, 46, "What is 17 + 25?", colour=BLUE, note="the prompt")
    for number, (words, reward) in enumerate(rows):
        y, colour = 34 + 42 * number, GREEN if reward else RED
        drawn += arrow(164, 115, 204, y + 17)
        drawn += box(210, y, 380, 34, words)
        drawn += box(610, y, 90, 34, f"reward {reward}", colour=colour)
    drawn += text(400, 20, "a group: completions of one prompt", at="middle", weight=600)
    return drawn + text(655, 222, "mean 0.5", at="middle", weight=600)


def advantage() -> str:
    groups = [
        ("1 of 8 right", [1.0] + [0.0] * 7),
        ("7 of 8 right", [1.0] * 7 + [0.0]),
        ("all right", [1.0] * 8),
    ]
    drawn = ""
    for number, (title, rewards) in enumerate(groups):
        left, zero, unit = 20 + 240 * number, 132, 34
        values = advantages.group_relative(
            torch.tensor(rewards), torch.zeros(8, dtype=torch.long)
        ).tolist()
        drawn += text(left, 20, title, weight=600) + line(left, zero, left + 205, zero, INK)
        for place, value in enumerate(values):
            x, height, colour = (
                left + 4 + 25.5 * place,
                abs(value) * unit,
                GREEN if value > 0 else RED,
            )
            drawn += (
                f'<rect x="{x}" y="{zero - height if value > 0 else zero}" width="19" '
                f'height="{height:.1f}" fill="{colour}"/>'
            )
        states = " and ".join(f"{value:+.2f}" for value in sorted({*values}, reverse=True) if value)
        drawn += text(left, 38, f"A = {states}" if states else "A = 0: nothing to learn", size=12)
    return drawn


def decision() -> str:
    tracks = [
        (
            "language model",
            ["What", "is", "17+25", "?"],
            ["think", "7+5", "=", "12", "…", "42"],
            [],
            "tokens",
        ),
        (
            "image model",
            ["“a red", "circle”", "noise"],
            ["step 1", "step 2", "step 3"],
            ["ODE", "ODE"],
            "denoising steps with noise",
        ),
        ("your own", ["state"], ["push", "push", "turn", "push"], [], "actions"),
    ]
    drawn = ""
    for number, (name, before, decisions, after, unit) in enumerate(tracks):
        y, x = 12 + 74 * number, 140
        drawn += text(10, y + 22, name, weight=600)
        for words in [*before, *decisions, *after]:
            colour = ORANGE if words in decisions else SOFT
            drawn += box(x, y, 52, 34, words, colour=colour)
            x += 57
        start = 140 + 57 * len(before)
        drawn += text(start, y + 52, f"decisions: {unit}", size=11, fill=ORANGE)
    return drawn


def clip() -> str:
    ratios = torch.linspace(0.5, 1.5, 201)
    drawn = ""
    for number, sign in enumerate((1.0, -1.0)):
        left, middle, unit = 70 + 360 * number, 128, 130

        def across(ratio: float, left: int = left) -> float:
            return left + (ratio - 0.5) * 260

        a = torch.full((1,), sign)
        ends = (1.2, 1.5) if sign > 0 else (0.5, 0.8)
        start, width = across(ends[0]), across(ends[1]) - across(ends[0])
        drawn += f'<rect x="{start}" y="46" width="{width}" height="164" fill="{PALE}"/>'
        drawn += text(
            left,
            20,
            f"A = {sign:+.0f}: {'better' if sign > 0 else 'worse'} than its group",
            weight=600,
        )
        drawn += text(start + width / 2, 40, "no gradient", at="middle", size=11)
        for ratio in (0.8, 1.0, 1.2):
            drawn += line(across(ratio), 46, across(ratio), 210, dashes="3 3")
            drawn += text(across(ratio), 226, f"{ratio}", at="middle", size=11)
        loss = objective.clipped(ratios.log().unsqueeze(0), a, low=0.2, high=0.2)[0]
        down = [middle - (value + sign) * unit * 0.9 for value in loss.tolist()]
        drawn += curve([across(r) for r in ratios.tolist()], down, BLUE if sign > 0 else ORANGE)
        drawn += text(left + 264, 226, "ratio", size=11)
        drawn += text(left - 8, 128, "loss", at="end", size=11)
    return drawn


def kl() -> str:
    differences = torch.linspace(-1.6, 1.6, 161)
    left, zero, across_unit, unit = 60, 150, 110, 44

    def across(value: float) -> float:
        return left + 190 + value * across_unit

    drawn = line(left, zero, left + 380, zero, INK) + line(across(0), 16, across(0), 214, SOFT)
    drawn += text(left + 384, zero + 4, "d = log_prob - reference", size=12)
    names: list[tuple[objective.Estimator, str, str, int]] = [
        ("k1", RED, "k1 = d", 60),
        ("k2", ORANGE, "k2 = d² / 2", 82),
        ("k3", BLUE, "k3 = exp(-d) - 1 + d, the default", 38),
    ]
    for name, colour, label, y in names:
        values = objective.kl(differences, torch.zeros_like(differences), estimator=name)
        drawn += curve(
            [across(d) for d in differences.tolist()],
            [zero - unit * v for v in values.tolist()],
            colour,
        )
        drawn += text(left + 420, y, label, fill=colour, weight=600)
    return drawn


def step() -> str:
    parts = [
        ("prompts", "draw some rows", SOFT),
        ("sampler", "G completions each", BLUE),
        ("rewards", "a number each", GREEN),
        ("algorithm", "advantages, loss", ORANGE),
        ("optimizer", "new weights", SOFT),
    ]
    drawn = ""
    for number, (name, note, colour) in enumerate(parts):
        x = 8 + 145 * number
        drawn += box(x, 30, 125, 52, name, colour=colour, note=note)
        if number:
            drawn += arrow(x - 19, 56, x - 3, 56)
    drawn += line(650, 82, 650, 122, INK) + line(650, 122, 215, 122, INK) + arrow(215, 122, 215, 86)
    drawn += text(432, 115, "the next step samples with the new weights", at="middle", size=12)
    return drawn


def plugins() -> str:
    kinds = [
        ("policy", "language_model, flow", 10, 14),
        ("sampler", "vllm", 10, 84),
        ("prompts", "dataset, reasoning_gym", 10, 154),
        ("reward", "math, image_contents, …", 520, 14),
        ("algorithm", "grpo, dapo, flow_grpo, …", 520, 84),
        ("callback", "yours", 520, 154),
    ]
    drawn = box(
        270, 62, 190, 92, "core", colour=ORANGE, note="rollouts, log-probs, groups, rewards"
    )
    drawn = drawn.replace('font-size="11"', 'font-size="10"')
    for name, examples, x, y in kinds:
        drawn += box(x, y, 200, 48, name, colour=BLUE, note=examples)
        start, end = (214, 266) if x < 100 else (516, 464)
        drawn += arrow(start, y + 24, end, 108 + (y - 84) * 0.4)
    return drawn


def svg(drawn: str, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 730 {height}" width="730" '
        f'font-family="system-ui, sans-serif" font-size="13"><defs><marker id="head" '
        f'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
        f'<rect width="730" height="{height}" fill="white"/>{drawn}</svg>\n'
    )


PICTURES: dict[Callable[[], str], int] = {
    group: 236,
    advantage: 230,
    decision: 222,
    clip: 236,
    kl: 222,
    step: 136,
    plugins: 216,
}

if __name__ == "__main__":
    for draw, height in PICTURES.items():
        path = HERE / f"concept_{draw.__name__}.svg"
        path.write_text(svg(draw(), height), encoding="utf-8")
