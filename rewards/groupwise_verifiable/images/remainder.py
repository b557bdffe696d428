"""What of a picture its background and its objects do not explain: specks, writing, holes.

An object explains pixels of its colour, and at its edge mixtures with the background. Whatever
else differs visibly is counted by its area, however small its parts are.
"""

from collections.abc import Sequence

import numpy as np

from groupwise_verifiable.images.pixels import Pixels
from groupwise_verifiable.images.regions import Box, Floats, Mask, Region, background, smooth

# Distances between colours are Euclidean, in RGB from 0 to 1. The first three are of a mean of
# 3 x 3 pixels, so that noise cancels out; edges and colours suffer more from JPEG and decoders.
_ON_BACKGROUND = 0.1
_AT_EDGE = 0.16
_IN_OBJECT = 0.2
_ALONE = 0.3  # of a single pixel at full resolution: grain and thin lines
_WIDTH, _AROUND = 2, np.ones((3, 3))  # pixels of an edge on both sides, and their neighbours
_MOST = 0.003  # of the image's area; less is noise


def remainder(
    image: Pixels, reduced: Pixels, regions: Sequence[tuple[Region, bool]]
) -> tuple[Floats, Box] | None:
    """Returns the mean colour and the box of what nothing explains, None where that is little.

    image: [H, W, 3]; reduced: the same by means of whole blocks of pixels, in which the regions
    were found, each with whether it has a known shape. Other forms are not judged again: they
    explain whatever they enclose. The box is in pixels of `reduced`.
    """
    plain = background(reduced)
    difference = reduced - plain
    explained, inside, edge = _explained(difference, plain, regions)
    rest = np.linalg.norm(smooth(np.moveaxis(difference - explained, 2, 0)), axis=0)
    limit = np.select([inside, edge], [_IN_OBJECT, _AT_EDGE], _ON_BACKGROUND)
    share = np.maximum(rest > limit, ~edge * _alone(image, plain + explained))
    if share.mean() <= _MOST:
        return None
    rows, columns = np.nonzero(share)
    box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
    return np.average(reduced[rows, columns], axis=0, weights=share[rows, columns]), box


def _explained(
    difference: Floats, plain: Floats, regions: Sequence[tuple[Region, bool]]
) -> tuple[Floats, Mask, Mask]:
    """The difference from the background that is explained, [h, w, 3]; the pixels inside of
    objects; and those at edges, where colours mix."""
    from scipy.ndimage import binary_dilation, binary_erosion, binary_fill_holes  # an extra

    explained = np.zeros_like(difference)
    shape = difference.shape[:2]
    inside, touched, free = np.zeros(shape, bool), np.zeros(shape, int), np.zeros(shape, bool)
    cores: list[tuple[Mask, Floats]] = []
    for region, known in regions:
        whole = binary_fill_holes(region.mask)
        near = binary_dilation(whole, _AROUND, iterations=_WIDTH)
        touched += near
        if not known:
            free |= near
            continue
        color = region.color - plain
        mixed = np.clip(difference[near] @ (color / color.dot(color)), 0.0, 1.0)
        explained[near] = mixed[:, None] * color
        cores.append((binary_erosion(whole, _AROUND, iterations=_WIDTH), color))
    for core, color in cores:
        explained[core] = color
        inside |= core
    free |= (touched > 1) & ~inside  # a mixture of two objects
    explained[free] = difference[free]
    return explained, inside & ~free, (touched > 0) & (free | ~inside)


def _alone(image: Pixels, expected: Floats) -> Floats:
    """[h, w]: the share of each block's pixels that differ from the block's expected colour."""
    height, width = expected.shape[:2]
    factor = image.shape[0] // height
    blocks = image[: height * factor, : width * factor].reshape(height, factor, width, factor, 3)
    rest = np.square(blocks - expected[:, None, :, None]).sum(axis=4)
    share: Floats = (rest > _ALONE**2).mean(axis=(1, 3))
    return share
