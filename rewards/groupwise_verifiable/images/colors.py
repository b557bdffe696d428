"""Names of colours, by the nearest colour of a palette."""

import numpy as np
from numpy.typing import NDArray

# GenEval's ten names, cyan and gray. Each name has several colours, so that dull and dark ones are
# named too: pure ones first, then those of CSS and of common plotting palettes.
PALETTE: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((255, 0, 0), (220, 40, 40), (180, 0, 0), (225, 70, 60)),
    "orange": ((255, 165, 0), (255, 127, 14), (240, 140, 40)),
    "yellow": ((255, 255, 0), (240, 210, 40), (255, 230, 90)),
    "green": ((0, 128, 0), (0, 255, 0), (44, 160, 44), (60, 200, 80)),
    "cyan": ((0, 255, 255), (23, 190, 207), (0, 180, 180)),
    "blue": ((0, 0, 255), (31, 119, 180), (40, 80, 220), (0, 0, 139), (70, 130, 240)),
    "purple": ((128, 0, 128), (148, 103, 189), (130, 50, 190), (160, 60, 220)),
    "pink": ((255, 192, 203), (227, 119, 194), (255, 105, 180)),
    "brown": ((139, 69, 19), (140, 86, 75), (110, 60, 30)),
    "black": ((0, 0, 0), (30, 30, 30)),
    "gray": ((128, 128, 128), (90, 90, 90), (170, 170, 170)),
    "white": ((255, 255, 255), (235, 235, 235)),
}
_EACH = [(number, color) for number, name in enumerate(PALETTE) for color in PALETTE[name]]
# [n, 3] in [0, 1]: all colours of the palette; [n]: index of each colour's name.
COLORS: NDArray[np.float64] = np.array([color for _, color in _EACH]) / 255.0
NAMES: NDArray[np.intp] = np.array([number for number, _ in _EACH])

# sRGB to CIE XYZ under D65, rows divided by the white point (IEC 61966-2-1).
_XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
) / np.array([[0.9505], [1.0], [1.089]])


def lab(rgb: NDArray[np.floating]) -> NDArray[np.float64]:
    """Returns CIE L*a*b* of sRGB in [0, 1], [..., 3]: distances there match human perception."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = linear @ _XYZ.T
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = root[..., 0], root[..., 1], root[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


_LAB = lab(COLORS)
_CLEAR = 0.93  # of the distance to any other name's nearest colour: more is between two names


def clear_color_name(rgb: NDArray[np.floating]) -> str | None:
    """Returns `color_name`, None for a colour about as near to another name."""
    distances = _distances(rgb)
    own = NAMES[distances.argmin()] == NAMES
    return color_name(rgb) if distances[own].min() <= _CLEAR * distances[~own].min() else None


def color_name(rgb: NDArray[np.floating]) -> str:
    """Returns the name of the palette's colour nearest to rgb, [3] in [0, 1]."""
    return list(PALETTE)[NAMES[_distances(rgb).argmin()]]


def _distances(rgb: NDArray[np.floating]) -> NDArray[np.float64]:
    """[n]: from rgb to each of the palette's colours."""
    return np.linalg.norm(_LAB - lab(np.clip(rgb, 0, 1)), axis=1)
