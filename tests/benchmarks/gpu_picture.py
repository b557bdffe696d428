"""The picture of `on_gpu.py`: curves of accuracy over minutes, as SVG."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP = 560, 260, 44, 16
INK, SOFT = "#57606a", "#d0d7de"
COLOURS = ("#d9730d", "#2f6fde", "#1a7f37")
TICKS = 4
"""Of each axis, beside 0."""


def draw(curves: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """curves: (seconds, accuracy) in the order of time, by title."""
    longest = max(points[-1][0] for points in curves.values())
    body = "".join([*axes(longest / 60), *lines(curves, longest)])
    width, height = WIDTH + LEFT + 20, HEIGHT + TOP + 44
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
        f'<rect width="{width}" height="{height}" fill="white"/>{body}</svg>\n',
        encoding="utf-8",
    )


def axes(minutes: float) -> Iterator[str]:
    for tick in range(TICKS + 1):
        share = tick / TICKS
        x, y = LEFT + WIDTH * share, TOP + HEIGHT * (1 - share)
        yield f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="{SOFT}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{share:g}</text>'
        below = TOP + HEIGHT + 18
        yield f'<text x="{x}" y="{below}" text-anchor="middle">{minutes * share:.3g}</text>'
    middle = f'x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle"'
    yield f"<text {middle}>accuracy over minutes of training</text>"


def lines(curves: Mapping[str, Sequence[tuple[float, float]]], longest: float) -> Iterator[str]:
    for number, (title, points) in enumerate(curves.items()):
        path = " ".join(
            f"{LEFT + WIDTH * seconds / longest:.1f},{TOP + HEIGHT * (1 - accuracy):.1f}"
            for seconds, accuracy in points
        )
        colour, y = COLOURS[number], TOP + 18 + 18 * number
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        yield f'<text x="{LEFT + 12}" y="{y}" fill="{colour}" font-weight="600">{title}</text>'
