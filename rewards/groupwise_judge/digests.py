"""Digests of pictures, each computed once: a ranking asks about a picture many times."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING
from weakref import finalize

from groupwise_judge.pictures import pixels

if TYPE_CHECKING:
    from PIL.Image import Image

_DIGESTS: dict[int, bytes] = {}
"""By the picture's id, for as long as the picture exists."""


def digest_of(image: Image) -> bytes:
    """The SHA-256 hash of a picture's size and pixels, which must not change any more."""
    if id(image) not in _DIGESTS:
        _DIGESTS[id(image)] = sha256(pixels(image)).digest()
        finalize(image, _DIGESTS.pop, id(image), None).atexit = False
    return _DIGESTS[id(image)]
