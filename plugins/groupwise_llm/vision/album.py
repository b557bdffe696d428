"""Album: prepares pictures once, and writes them into a tensor that travels with a rollout."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise_llm.vision.family import Family
from groupwise_llm.vision.picture import Picture

KEPT = 2**30
"""Bytes of prepared pictures that are kept; those used least recently are dropped first."""
NAMED = 2**16
"""Different pictures that are recognized, those used last."""
BLANK = 2**8
"""Different sizes whose numbers of tokens are kept, those used last."""
HEADER = np.dtype([("first", "<i8"), ("width", "<i8"), ("height", "<i8"), ("tokens", "<i8")])
"""What stands first of a packed picture: then advances and offsets of its tokens, then pixels."""
STEP = np.dtype("<i2")
"""The type of packed advances and offsets, which are less than twice `ROOM`."""


class Album:
    """The pictures of a run, each prepared once while it is kept.

    limits: arguments of `Family.picture`.
    """

    def __init__(self, family: Family, limits: Mapping[str, Any]) -> None:
        self.family, self.limits = family, limits
        self._firsts: dict[bytes, int] = {}
        self._kept: dict[int, Picture] = {}
        self._bytes = 0
        self._blank: dict[tuple[int, int], Picture] = {}

    def picture(self, image: Any) -> Picture:
        """An image of PIL in RGB, prepared; raises what the family's processor does.

        The picture's own image is a reduced one, if the model reads the same of it.
        """
        content = f"{image.size}".encode() + image.tobytes()
        key = blake2b(content, digest_size=16).digest()
        known = self._kept.get(self._firsts.pop(key, 0))
        if known is None:
            known = self._prepared(image)
        _keep(self._firsts, key, known.first, NAMED)
        return self._used(known)

    def blank(self, size: tuple[int, int]) -> Picture:
        """A picture of this width and height, for its number of tokens; it has no inputs."""
        known = self._blank.pop(size, None)
        if known is None:
            prepared = self.family.picture(Image.new("RGB", size), **self.limits)
            known = replace(prepared, inputs={})
        _keep(self._blank, size, known, BLANK)
        return known

    def complete(self, picture: Picture) -> Picture:
        """A picture with its inputs: prepared again, if they are not kept any more.

        Raises UserError for one that was prepared in another way when it was packed.
        """
        if picture.inputs:
            return picture
        whole = self._kept.get(picture.first) or self.picture(picture.image)
        if whole.first != picture.first:
            raise UserError(
                "a picture of an earlier step was prepared otherwise (policy.min_pixels, "
                "policy.max_pixels or the model's image processor have changed); resume with "
                "what the run began with, or without train.replay"
            )
        return self._used(whole)

    def _prepared(self, image: Any) -> Picture:
        whole = replace(self.family.picture(image, **self.limits), image=image)
        reduced = self.family.reduced(whole)
        if reduced is None or self.family.picture(reduced, **self.limits).first != whole.first:
            return whole
        return replace(whole, image=reduced)

    def _used(self, picture: Picture) -> Picture:
        """Keep this one as that used last."""
        before = self._kept.pop(picture.first, None)
        self._bytes += picture.nbytes - (before.nbytes if before else 0)
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
            header = np.array((picture.first, *picture.image.size, len(picture)), dtype=HEADER)
            steps = torch.cat([picture.advances.unsqueeze(0), picture.offsets]).numpy()
            parts += [header.tobytes(), steps.astype(STEP).tobytes(), picture.image.tobytes()]
        return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if parts else EMPTY

    def unpacked(self, tensor: Tensor) -> list[Picture]:
        """The pictures of `packed`, without texts; and without inputs, where these are not kept:
        see `complete`."""
        data, pictures = tensor.numpy(), []
        while len(data):
            first, width, height, tokens = data[: HEADER.itemsize].view(HEADER)[0].tolist()
            data = data[HEADER.itemsize :]
            rows = 1 + self.family.axes
            end = rows * tokens * STEP.itemsize
            picture = self._kept.get(first)
            if picture is None:
                steps = data[:end].view(STEP).reshape(rows, tokens).astype(np.int64)
                pixels = data[end : end + 3 * width * height].tobytes()
                picture = Picture(
                    inputs={},
                    text="",
                    advances=torch.from_numpy(steps[0]),
                    offsets=torch.from_numpy(steps[1:]),
                    image=Image.frombytes("RGB", (width, height), pixels),
                    first=first,
                )
            pictures.append(picture)
            data = data[end + 3 * width * height :]
        return pictures


def _keep(values: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Have this one as the last, of the last so many."""
    values[key] = value
    if len(values) > most:
        del values[next(iter(values))]


EMPTY = torch.empty(0, dtype=torch.uint8)
