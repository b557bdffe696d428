"""Regions of one colour on a plain background."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from groupwise_verifiable.images.colors import COLORS, NAMES
from groupwise_verifiable.images.pixels import Pixels

# Distances between colours are Euclidean, in RGB from 0 to 1: at most 1.73.
_CONTRAST = 0.22  # pixels nearer to the background's colour belong to the background
_SAME = 0.18  # colours whose means are nearer than this are one colour
_SHARE = 0.12  # of a connected foreground; a colour with less is the mixture where two others meet
_SPECK = 0.007  # of the image's area; smaller regions are noise
_RIM = 2  # pixels of a window around its region

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Region:
    """A connected region of one colour.

    coverage: [h, w], the share of each pixel of a window around the region that the region covers:
    0 to 1, apart from noise. color: [3], RGB in [0, 1]. mask: [H, W], the image's pixels covered by
    more than half; box: their left, top, right and bottom; right and bottom are exclusive.
    """

    coverage: Floats
    color: Floats
    mask: Mask
    box: Box


def regions(image: Pixels) -> list[Region]:
    """Returns the regions of an image [H, W, 3] that differ from the median of its border.

    Each connected foreground is divided by colour, then each colour into connected regions, so
    objects of different colours may touch.
    """
    plain = background(image)
    difference = image - plain
    foreground = np.square(difference).sum(axis=2) > _CONTRAST**2
    smallest = _SPECK * foreground.size
    taken = np.zeros_like(foreground)
    solids: list[tuple[Mask, Box]] = []
    pieces = [mask for mask, _ in _connected(foreground, smallest)]
    while pieces:
        piece = pieces.pop()
        solid = np.zeros_like(piece)
        for layer in _layers(piece, difference, plain):
            covered = layer & (_coverage(difference, layer) > 0.5)
            solids += _connected(covered, smallest)
            solid |= covered
        taken |= solid
        # What remains is a colour much fainter than another that it touches.
        pieces += [mask for mask, _ in _connected(piece & ~_grown(solid), smallest)]
    return [_region(mask, box, difference, mask | ~taken, plain) for mask, box in solids]


def background(image: Pixels) -> Floats:
    """Returns the median colour [3] of an image's border."""
    edges = (image[0], image[-1], image[1:-1, 0], image[1:-1, -1])
    return np.median(np.concatenate(edges), axis=0).astype(np.float64)


def _connected(mask: Mask, smallest: float) -> Iterator[tuple[Mask, Box]]:
    """The 4-connected components of at least `smallest` pixels, as masks [H, W] and boxes."""
    from scipy.ndimage import find_objects, label  # an extra

    numbers, _ = label(mask)
    areas = np.bincount(numbers.ravel())
    for number, (rows, columns) in enumerate(find_objects(numbers), start=1):
        if areas[number] >= smallest:
            yield numbers == number, (columns.start, rows.start, columns.stop, rows.stop)


def _layers(piece: Mask, difference: Floats, plain: Floats) -> list[Mask]:
    """The pixels of a connected foreground, divided by colour.

    A pixel on an edge is a mixture with the background: its difference from the background is
    shorter than that of the colour, but has the same direction. So directions are compared.
    """
    pixels = difference[piece]
    lengths = np.linalg.norm(pixels, axis=1)
    strong = pixels[lengths >= 0.6 * np.median(lengths)]
    kept = _colors(strong, plain)
    if len(kept) == 1:
        return [piece]
    directions = np.stack([mean / np.linalg.norm(mean) for mean in kept])
    owner = np.full(piece.shape, -1)
    owner[piece] = (pixels @ directions.T).argmax(axis=1)
    return [owner == index for index in np.unique(owner[piece])]


def _colors(pixels: Floats, plain: Floats) -> list[Floats]:
    """Mean differences from the background of the palette's colours that occur in pixels [n, 3]."""
    palette = COLORS - plain
    lengths = np.linalg.norm(palette, axis=1)
    visible = lengths > _CONTRAST
    directions = palette[visible] / lengths[visible, None]
    names = NAMES[visible][(pixels @ directions.T).argmax(axis=1)]
    votes = np.bincount(names)
    kept: list[Floats] = []
    for name in votes.argsort()[::-1]:
        if kept and votes[name] < _SHARE * len(pixels):
            break
        mean = pixels[names == name].mean(axis=0)
        if all(_differ(mean, other) for other in kept):
            kept.append(mean)
    return kept


def _differ(first: Floats, second: Floats) -> bool:
    """Whether two differences from the background are two colours, not one colour with noise."""
    turn = first / np.linalg.norm(first) - second / np.linalg.norm(second)
    return bool(min(np.linalg.norm(first - second), np.linalg.norm(turn)) > _SAME)


def _coverage(difference: Floats, layer: Mask) -> Floats:
    """[H, W]: the share of each pixel that the layer's colour covers; the rest is background."""
    color = _core(difference, layer)
    return difference @ (color / color.dot(color))


def _core(difference: Floats, layer: Mask) -> Floats:
    """[3]: the mean difference of the layer's pixels that are no mixture."""
    pixels = difference[layer]
    along = pixels.sum(axis=0)
    lengths = pixels @ (along / np.linalg.norm(along))
    quarter = 3 * len(lengths) // 4
    strong = lengths >= 0.8 * np.partition(lengths, quarter)[quarter]
    return pixels[strong].mean(axis=0)


def _region(mask: Mask, box: Box, difference: Floats, free: Mask, plain: Floats) -> Region:
    left, top, right, bottom = box
    window = (
        slice(max(top - _RIM, 0), bottom + _RIM),
        slice(max(left - _RIM, 0), right + _RIM),
    )
    inside, around = mask[window], _grown(mask[window]) & free[window]
    color = _core(difference[window], inside)
    coverage = np.where(around, difference[window] @ (color / color.dot(color)), 0.0)
    return Region(coverage, color + plain, mask, box)


def _grown(mask: Mask) -> Mask:
    """The mask with the eight neighbours of its pixels."""
    rows = mask.copy()
    rows[1:] |= mask[:-1]
    rows[:-1] |= mask[1:]
    both = rows.copy()
    both[:, 1:] |= rows[:, :-1]
    both[:, :-1] |= rows[:, 1:]
    return both


def smooth(images: Floats) -> Floats:
    """Returns images [n, h, w] filtered by (1, 2, 1) / 4 in both directions."""
    rows = 2 * images
    rows[:, 1:] += images[:, :-1]
    rows[:, :-1] += images[:, 1:]
    both = 2 * rows
    both[:, :, 1:] += rows[:, :, :-1]
    both[:, :, :-1] += rows[:, :, 1:]
    return both / 16
