"""Picture: a picture as a model reads it, whose tokens have ids of their own.

The k-th token of a picture has the id `first + k`, far above any vocabulary, where `first` follows
from what the model sees. So contexts with pictures are plain ids: equal ids are equal contexts, in
every process and after a run is resumed.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

from torch import Tensor

BEYOND = 2**32
"""No token of a vocabulary has this id or a larger one; all tokens of pictures have."""
ROOM = 2**14
"""Ids between the first tokens of two pictures: the most tokens that a picture may have."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A picture that a family's processor has prepared.

    image: the PIL image, in RGB.
    inputs: the image processor's tensors for this image alone (`pixel_values` and the like); empty
        where they are not kept, see `Album.complete`.
    text: what the processor writes in the place of the picture's placeholder, with the image token
        as often as the picture has tokens; families may put others around or between them.
    offsets: [axes, n] int64; advances: [n] int64. The position of the k-th token is the sum of the
        advances of all tokens before it, plus its offset. A token of text advances by 1 and has no
        offset, and so have those of pictures in families whose positions count tokens.
    first: the id of its first token: 48 bits of a digest of all that the model reads, times `ROOM`;
        computed where it is 0.
    """

    inputs: Mapping[str, Tensor]
    text: str
    offsets: Tensor
    advances: Tensor
    image: Any = None
    first: int = 0

    def __post_init__(self) -> None:
        if not self.first:
            object.__setattr__(self, "first", self._first())

    def __len__(self) -> int:
        """The number of its tokens."""
        return len(self.advances)

    def _first(self) -> int:
        digest = hashlib.blake2b(self.text.encode(), digest_size=6)
        tokens = {"offsets": self.offsets, "advances": self.advances}
        for name, tensor in sorted({**self.inputs, **tokens}.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
        return BEYOND + int.from_bytes(digest.digest()) * ROOM

    @property
    def nbytes(self) -> int:
        """The memory that its inputs and its image take."""
        width, height = self.image.size
        return sum(tensor.nbytes for tensor in self.inputs.values()) + 3 * width * height

    @cached_property
    def url(self) -> str:
        """Its image as a data URL in PNG, which keeps every pixel."""
        file = BytesIO()
        self.image.save(file, "PNG", compress_level=1)  # a quarter of the time, somewhat larger
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"

    @property
    def ids(self) -> Sequence[int]:
        """The ids of its tokens."""
        return range(self.first, self.first + len(self))
