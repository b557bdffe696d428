"""Detects disks, squares, triangles and crosses on a plain background, without a model.

A region of one colour is compared, by the coverage of each pixel, with every shape drawn with the
same area, centre and proportions. This works from eight pixels up, with antialiasing, slight blur
and noise. A region that fits no shape, or two about equally well, is "?"; so is whatever of the
picture no object explains.
"""

from math import ceil

import numpy as np

from groupwise_verifiable.images.colors import clear_color_name
from groupwise_verifiable.images.detection import Detection
from groupwise_verifiable.images.pixels import Pixels
from groupwise_verifiable.images.regions import Floats, regions, smooth
from groupwise_verifiable.images.remainder import remainder

SHAPES = ("disk", "square", "triangle", "cross")
ALIASES = {"circle": "disk"}
UNKNOWN = "?"

# Templates. A cross's arm is this share of its width; a triangle points up, down, left or right.
_ARMS = (0.24, 0.3, 0.36, 0.42)
_TEMPLATES = np.array(["disk", "square", *["cross"] * len(_ARMS), *["triangle"] * 4])
_ARM = np.array(
    [1.0, 1.0, *_ARMS, 1.0, 1.0, 1.0, 1.0]
)  # a square is a cross with arms of full width
_IS_DISK, _IS_TRIANGLE = _TEMPLATES == "disk", _TEMPLATES == "triangle"
# The share of its box that each template covers.
_FILL = np.select([_IS_DISK, _IS_TRIANGLE], [np.pi / 4, 0.5], 1 - (1 - _ARM) ** 2)

_SIDE = 64  # larger images are downscaled until their short side is at most this long
_LINES = 4  # scan lines per row of pixels when templates are drawn
# Clear shapes have an error of up to 0.1, at most 0.45 of the next template's; blurred ones more.
_LARGEST_ERROR = 0.15
_LARGEST_RATIO = 0.55
_LARGEST_ASPECT = {"disk": 1.15, "square": 1.15, "triangle": 1.5, "cross": 1.5}
# Regular polygons, stars and gears deviate from their disk n times a turn, rounded squares from
# their square. Good shapes of a small model reach 0.02 of the area, hexagons begin at 0.04; for
# n = 3 and 4 such shapes reach a quarter of a pixel, which is more of the area the smaller it is.
_TURNS = np.arange(3, 21)
_LARGEST_WAVE = 0.022
_LARGEST_WOBBLE = 0.3  # pixels
_LONGEST_WINDOW = 4  # times its width; a longer region is no shape, and its square takes memory


def find_shapes(image: Pixels) -> list[Detection]:
    """Returns every object of an image [H, W, 3]; unclear shapes have the label "?".

    So has what neither the background nor an object explains, as one more object. color: None where
    it is between two names. score: 1 - error of the fit.
    """
    factor = ceil(min(image.shape[:2]) / _SIDE)
    reduced = _reduced(image, factor)
    fits = [(region, *shape_of(region.coverage)) for region in regions(reduced)]
    objects = [
        _detection(shape, region.color, region.box, max(0.0, 1.0 - error), factor)
        for region, shape, error in fits
    ]
    rest = remainder(image, reduced, [(region, shape != UNKNOWN) for region, shape, _ in fits])
    return objects if rest is None else [*objects, _detection(UNKNOWN, *rest, 0.0, factor)]


def shape_of(coverage: Floats) -> tuple[str, float]:
    """Returns the shape of a region with this coverage [h, w] of its window, and the error.

    error = sqrt(sum (coverage - template)^2 / sum coverage^2).
    """
    side = max(coverage.shape)
    if side > _LONGEST_WINDOW * min(coverage.shape):
        return UNKNOWN, 1.0
    patch = np.zeros((side, side))
    patch[: coverage.shape[0], : coverage.shape[1]] = coverage
    upright = [patch] * (len(_TEMPLATES) - 3)
    # Triangles that point down, left and right, turned or mirrored to point up.
    patches = np.stack([*upright, patch[::-1], patch.T, patch[:, ::-1].T])
    drawn, aspects = _drawn(patches)
    soft, sharp = smooth(patches), smooth(drawn)
    rests = np.stack([soft - sharp, soft - smooth(sharp)])  # of clear and of blurred shapes
    squares = np.square(rests).sum(axis=(2, 3))
    errors = np.sqrt(squares.min(axis=0) / np.square(patch).sum())
    best = int(errors.argmin())
    shape, error = str(_TEMPLATES[best]), float(errors[best])
    rival = float(errors[np.not_equal(_TEMPLATES, shape)].min())
    unlike = error > min(_LARGEST_ERROR, _LARGEST_RATIO * rival)
    lengthy = max(aspects[best], 1 / aspects[best]) > _LARGEST_ASPECT[shape]
    rest = rests[squares[:, best].argmin(), best]
    wavy = shape in ("disk", "square") and _wavy(patch, rest)
    return (UNKNOWN if unlike or lengthy or wavy else shape), error


def _wavy(patch: Floats, rest: Floats) -> bool:
    """Whether a misfit [side, side] repeats n times a turn around the patch's centre."""
    area = max(patch.sum(), 1.0)
    places = np.arange(len(patch)) + 0.5
    x, y = places - patch.sum(axis=0) @ places / area, places - patch.sum(axis=1) @ places / area
    turn = np.arctan2(y[:, None], x)
    waves = [abs((rest * np.exp(1j * n * turn)).sum()) / area for n in _TURNS]
    wobble = max(_LARGEST_WAVE, _LARGEST_WOBBLE * np.sqrt(np.pi / area))
    return bool(np.any(waves > np.where(_TURNS < 5, wobble, _LARGEST_WAVE)))


def _detection(
    shape: str, color: Floats, box: tuple[int, int, int, int], score: float, factor: int
) -> Detection:
    left, top, right, bottom = (float(edge * factor) for edge in box)
    return Detection(shape, clear_color_name(color), (left, top, right, bottom), score)


def _reduced(image: Pixels, factor: int) -> Pixels:
    """The image downscaled by the means of factor x factor pixels."""
    if factor == 1:
        return image
    height, width = (length // factor for length in image.shape[:2])
    whole = image[: height * factor, : width * factor]
    return whole.reshape(height, factor, width, factor, 3).mean(axis=(1, 3))


def _drawn(patches: Floats) -> tuple[Floats, Floats]:
    """Each template drawn as large as its patch's region, [n, side, side], and width / height [n].

    Centre, area and proportions come from the patch's moments, which blur hardly changes.
    """
    side = patches.shape[1]
    places = np.arange(side) + 0.5
    area = np.maximum(patches.sum(axis=(1, 2)), 1.0)
    columns, rows = patches.sum(axis=1), patches.sum(axis=2)
    x, y = columns @ places / area, rows @ places / area
    across = np.maximum(columns @ places**2 / area - x**2, 0.1)
    down = np.maximum(rows @ places**2 / area - y**2, 0.1)
    # Variances of a triangle: width^2 / 24 and height^2 / 18; other shapes have one divisor.
    aspect = np.sqrt(across / down * np.where(_IS_TRIANGLE, 24 / 18, 1.0))
    width = np.sqrt(area / _FILL * aspect)
    height = width / aspect
    y = y - np.where(_IS_TRIANGLE, height / 6, 0.0)  # from the centre of mass to the box's
    lines = (np.arange(side * _LINES) + 0.5) / _LINES
    half = _half_widths((lines - y[:, None]) / height[:, None]) * width[:, None]
    left, right = x[:, None] - half, x[:, None] + half
    spans = np.minimum(places + 0.5, right[..., None]) - np.maximum(places - 0.5, left[..., None])
    drawn = np.clip(spans, 0.0, 1.0).reshape(len(patches), side, _LINES, side).mean(axis=2)
    return drawn, aspect


def _half_widths(v: Floats) -> Floats:
    """[n, lines]: half the width of each template / its box's width, at heights v; -0.5 is the
    top."""
    disk = np.sqrt(np.maximum(0.25 - v**2, 0.0))
    arm = _ARM[:, None] / 2
    others = np.where(np.abs(v) <= arm, 0.5, arm)
    half = np.where(_IS_DISK[:, None], disk, np.where(_IS_TRIANGLE[:, None], (v + 0.5) / 2, others))
    return np.where(np.abs(v) <= 0.5, half, 0.0)
