"""Album: prepares pictures once, and writes them into a tensor that travels with a rollout."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from groupwise.errors import UserError
from groupwise_llm.vision.family import Family
from groupwise_llm.vision.picture import Picture

KEPT = 2**30
"""Bytes of prepared pictures that are kept; those used least recently are dropped first."""
HEADER = np.dtype([("first", "<i8"), ("width", "<i8"), ("height", "<i8")])
"""What stands before the pixels of a packed picture."""


class Album:
    """The pictures of a run, each prepared once.

    limits: arguments of `Family.picture`.
    """

    def __init__(self, family: Family, limits: Mapping[str, Any]) -> None:
        self.family, self.limits = family, limits
        self._firsts: dict[bytes, int] = {}
        self._kept: dict[int, Picture] = {}
        self._bytes = 0
        self._blank: dict[tuple[int, int], Picture] = {}

    def picture(self, image: Any) -> Picture:
        """An image of PIL in RGB, prepared; raises what the family's processor does."""
        content = f"{image.size}".encode() + image.tobytes()
        key = blake2b(content, digest_size=16).digest()
        known = self._kept.get(self._firsts.get(key, 0))
        if known is None:
            known = replace(self.family.picture(image, **self.limits), image=image)
            self._firsts[key] = known.first
        return self._used(known)

    def blank(self, size: tuple[int, int]) -> Picture:
        """A picture of this width and height, for its number of tokens; it has no inputs."""
        if size not in self._blank:
            prepared = self.family.picture(Image.new("RGB", size), **self.limits)
            self._blank[size] = replace(prepared, inputs={})
        return self._blank[size]

    def _used(self, picture: Picture) -> Picture:
        """Keep this one as that used last."""
        if self._kept.pop(picture.first, None) is None:
            self._bytes += picture.nbytes
        self._kept[picture.first] = picture
        while self._bytes > KEPT and len(self._kept) > 1:
            self._bytes -= self._kept.pop(next(iter(self._kept))).nbytes
        return picture

    def packed(self, pictures: Sequence[Picture]) -> Tensor:
        """[bytes] uint8: several pictures in one tensor, which travels with a rollout.

        It has their images, which are several times smaller than what a processor makes of them.
        """
        parts = []
        for picture in pictures:
            header = np.array((picture.first, *picture.image.size), dtype=HEADER)
            parts += [header.tobytes(), picture.image.tobytes()]
        return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if parts else EMPTY

    def unpacked(self, tensor: Tensor) -> list[Picture]:
        """The pictures of `packed`; prepared again, if they are not kept any more.

        Raises UserError for one that was prepared in another way when it was packed.
        """
        data, place, pictures = tensor.numpy(), 0, []
        while place < len(data):
            first, *size = data[place : place + HEADER.itemsize].view(HEADER)[0].tolist()
            place += HEADER.itemsize
            stop = place + 3 * size[0] * size[1]
            picture = self._kept.get(first)
            if picture is None:
                picture = self.picture(Image.frombytes("RGB", size, data[place:stop].tobytes()))
            if picture.first != first:
                raise UserError(
                    "a picture of an earlier step was prepared otherwise (policy.min_pixels, "
                    "policy.max_pixels or the model's image processor have changed); resume with "
                    "what the run began with, or without train.replay"
                )
            pictures.append(self._used(picture))
            place = stop
        return pictures


EMPTY = torch.empty(0, dtype=torch.uint8)
