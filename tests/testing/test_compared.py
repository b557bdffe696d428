"""How the laws compare completions: what is rounded to levels is compared as what it was before."""

import pytest
import torch
from PIL import Image

from groupwise_testing.compare import completions_gap

LIMIT = 1e-4
"""Of `check_sampler`, for a sampler that is `exact`."""


def picture(values: torch.Tensor) -> Image.Image:
    """Values [height, width] from 0 to 1 as pixels of 8 bits."""
    return Image.fromarray((255 * values).round().to(torch.uint8).numpy())


def values(seed: int = 0) -> torch.Tensor:
    return torch.rand(64, 64, generator=torch.Generator().manual_seed(seed)) * 0.9


@pytest.mark.parametrize("error", [1e-7, 1e-6])
def test_errors_far_below_a_level_are_none_wherever_a_border_lies(error):
    one, other = (picture(values() + sign * error) for sign in (0, 1))
    on_borders = values().mul(255).floor().add(0.5).div(255)  # none, some or all of them change
    few = torch.where(torch.eye(64, dtype=torch.bool), on_borders, values())
    assert completions_gap(one, other) < LIMIT
    assert completions_gap(picture(few - error), picture(few + error)) < LIMIT


@pytest.mark.parametrize("error", [5e-4, 1e-3, 0.01])
def test_the_gap_of_pixels_below_a_level_is_that_of_their_values(error):
    gap = completions_gap(picture(values()), picture(values() + error))
    assert gap > max(LIMIT, 0.8 * error)


def test_two_levels_at_one_pixel_and_another_size_are_differences():
    changed = values()
    changed[3, 4] += 2 / 255
    assert completions_gap(picture(values()), picture(changed)) > LIMIT
    assert completions_gap(picture(values()), picture(values()[:32])) > LIMIT
