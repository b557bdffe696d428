"""Draw the pictures of docs/flow.md.

    python docs/pictures/draw.py

The paths are real ones: data of two Gaussians on a line, whose exact velocity is known, denoised by
`groupwise_flow.sde.step`.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from groupwise_flow import sde
from groupwise_flow.sde import Kind

HERE = Path(__file__).parent
CENTRES, SPREAD = (-1.2, 1.2), 0.25
INK, SOFT, BLUE, ORANGE = "#57606a", "#d0d7de", "#2f6fde", "#d9730d"
STEPS = 10


def velocity(x: Tensor, sigma: float) -> Tensor:
    """E[noise - data | x] of the mixture at noise level sigma."""
    centres = torch.tensor(CENTRES)
    variance = (1 - sigma) ** 2 * SPREAD**2 + sigma**2
    apart = x.unsqueeze(-1) - (1 - sigma) * centres
    share = (-(apart**2) / (2 * variance)).softmax(dim=-1)
    data = centres + (1 - sigma) * SPREAD**2 / variance * apart
    noise = sigma / variance * apart
    return (share * (noise - data)).sum(dim=-1)


def paths(start: Tensor, kinds: Sequence[Kind]) -> Tensor:
    """[steps + 1, n] from noise to data, a kind for each step."""
    sigmas = torch.linspace(1, 0, len(kinds) + 1)
    x, kept = start, [start]
    for kind, sigma, after in zip(kinds, sigmas[:-1].tolist(), sigmas[1:].tolist(), strict=True):
        told = velocity(x, sigma).unsqueeze(1)
        done = sde.step(told, x.unsqueeze(1), sigma, after, kind=kind, noise_level=0.7)
        x = done.next_sample.squeeze(1)
        kept.append(x)
    return torch.stack(kept)


def panel(title: str, note: str, lines: Tensor, noisy: Sequence[bool], left: int) -> str:
    """One chart: time runs to the right, noise at the left and data at the right."""
    width, height, top = 250, 170, 44
    across = [left + 20 + width * k / (len(lines) - 1) for k in range(len(lines))]

    def down(value: float) -> float:
        return top + height * (0.5 - value / 4.6)

    shades = "".join(
        f'<rect x="{across[k]:.1f}" y="{top}" width="{across[k + 1] - across[k]:.1f}" '
        f'height="{height}" fill="{ORANGE}" opacity="0.13"/>'
        for k, is_noisy in enumerate(noisy)
        if is_noisy
    )
    drawn = ""
    for number in range(lines.shape[1]):
        points = " ".join(
            f"{x:.1f},{down(v):.1f}" for x, v in zip(across, lines[:, number].tolist(), strict=True)
        )
        drawn += (
            f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.3" '
            f'opacity="0.75"/>'
        )
    ticks = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}" stroke="{SOFT}"/>'
        for x in across
    )
    return (
        f'<text x="{left + 20}" y="18" font-weight="600" fill="{INK}">{title}</text>'
        f'<text x="{left + 20}" y="34" fill="{INK}" font-size="11">{note}</text>'
        f"{shades}{ticks}{drawn}"
        f'<text x="{left + 20}" y="{top + height + 16}" fill="{INK}" font-size="11">noise</text>'
        f'<text x="{left + 20 + width}" y="{top + height + 16}" fill="{INK}" font-size="11" '
        f'text-anchor="end">picture</text>'
    )


def write(name: str, panels: Sequence[str], width: int) -> None:
    (HERE / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 240" width="{width}" '
        f'font-family="system-ui, sans-serif" font-size="13">'
        f'<rect width="{width}" height="240" fill="white"/>{"".join(panels)}</svg>\n',
        encoding="utf-8",
    )


def main() -> None:
    torch.manual_seed(4)
    apart = torch.erfinv(torch.linspace(-0.93, 0.93, 12)) * math.sqrt(2)
    same = torch.full((12,), 0.25)
    window: list[Kind] = ["ode", "ode", "flow", "flow", "flow", *["ode"] * 5]  # type: ignore[list-item]
    everywhere: list[Kind] = [*["flow"] * 9, "ode"]  # type: ignore[list-item]
    panels = [
        ("ODE", "one noise, one picture: nothing to choose", ["ode"] * STEPS, apart),
        ("SDE", "nine decisions from the same noise", everywhere, same),
        ("A window of three", "a shared start, three decisions, ODE after", window, same),
    ]
    drawn = [
        panel(title, note, paths(start, kinds), [kind != "ode" for kind in kinds], 290 * number)
        for number, (title, note, kinds, start) in enumerate(panels)
    ]
    write("denoising.svg", drawn, 290 * len(panels))


if __name__ == "__main__":
    main()
