"""Album: prepares pictures once, and writes them into a tensor that travels with a rollout."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from groupwise.errors import UserError
from groupwise_llm.vision.family import Family
from groupwise_llm.vision.picture import ROOM, Picture

MODES = ("RGB", "RGBA", "L")
"""Modes of images that are kept; others become RGB."""
KEPT = 2**30
"""Bytes of prepared pictures that are kept; those used least recently are dropped first."""
HEADER = 4
"""Numbers before the pixels of a picture: the id of its first token, mode, width and height."""


class Album:
    """The pictures of a run, by their content.

    limits: arguments of the family's image processor.
    """

    def __init__(self, family: Family, limits: Mapping[str, Any]) -> None:
        self.family, self.limits = family, limits
        self._kept: dict[bytes, Picture] = {}
        self._keys: dict[int, bytes] = {}

    def picture(self, image: Any) -> Picture:
        """A PIL image, prepared. Raises UserError where the family refuses it."""
        image = image if image.mode in MODES else image.convert("RGB")
        name = f"{image.mode} {image.size}".encode()
        key = blake2b(name + image.tobytes(), digest_size=16).digest()
        picture = self._kept.pop(key, None)
        if picture is None:
            picture = self._prepared(image)
        self._kept[key] = picture
        self._drop()
        return picture

    def _prepared(self, image: Any) -> Picture:
        try:
            picture = self.family.picture(image, **self.limits)
        except UserError:
            raise
        except Exception as error:  # image processors raise anything
            raise UserError(
                f"a picture of {image.width} x {image.height} pixels is refused by the model's "
                f"image processor: {error}"
            ) from error
        if len(picture) > ROOM:
            raise UserError(
                f"a picture of {image.width} x {image.height} pixels has {len(picture)} tokens, "
                f"more than {ROOM}; set policy.max_pixels"
            )
        picture.image = image
        return picture

    def _drop(self) -> None:
        total = 0
        for key, picture in reversed(self._kept.copy().items()):
            total += sum(tensor.nbytes for tensor in picture.inputs.values())
            if total > KEPT:
                del self._kept[key]

    # ---- as a tensor

    def packed(self, pictures: Sequence[Picture]) -> Tensor:
        """[bytes] uint8 of several pictures: their images, which `unpacked` prepares again."""
        parts = [np.array([len(pictures)], dtype=np.int64).tobytes()]
        for picture in pictures:
            image = picture.image
            header = [picture.first, MODES.index(image.mode), *image.size]
            parts += [np.array(header, dtype=np.int64).tobytes(), image.tobytes()]
        return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)

    def unpacked(self, tensor: Tensor) -> list[Picture]:
        """The pictures of `packed`."""
        data = tensor.numpy().data
        (count,), place = np.frombuffer(data, np.int64, 1), 8
        pictures = []
        for _ in range(count):
            first, mode, width, height = np.frombuffer(data, np.int64, HEADER, place).tolist()
            place += 8 * HEADER
            size = width * height * len(MODES[mode])
            image = Image.frombytes(MODES[mode], (width, height), data[place : place + size])
            place += size
            pictures.append(self.picture(image))
            if pictures[-1].first != first:
                raise UserError("...")
        return pictures
