"""Memory that pictures take: of their pixels, and of what the vision tower makes of them."""

import math
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from groupwise.kit.errors import first_line
from groupwise.kit.memory import Workload
from groupwise_llm.estimates.counting import saved_bytes, without_data
from groupwise_llm.files.loading import outline
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics
from groupwise_llm.settings import Settings
from groupwise_llm.vision.album import Album
from groupwise_llm.vision.family import Family, Features
from groupwise_llm.vision.picture import Picture
from groupwise_llm.vision.settings import VisionSettings

aten = torch.ops.aten
MEGAPIXEL = 1024 * 1024
"""Pixels of a picture where no limit is set."""
SMALL = 128 * 128
"""Most pixels of the picture that is measured: larger ones take as much more as they have more
patches or tiles, and the tower's code runs for as long."""


def blank(pixels: int) -> Any:
    """A square image of PIL with so many pixels."""
    side = math.isqrt(pixels)
    return Image.new("RGB", (side, side))


def estimate(
    config: Any, settings: VisionSettings, load: Workload, album: Album, picture: Picture
) -> Mapping[str, int]:
    """Bytes of pixels, features and the tower's activations, with a picture such as this one in
    each prompt. The tower reads all pictures of a pass at once, if it learns or is sharded, and
    else one after the other.

    config: transformers' configuration.
    """
    learns = load.decisions > 0 and settings.vision == "trained"
    count = _count(settings, load, picture)
    at_once = count if learns or load.shards > 1 else 1
    width, height = picture.image.size
    limited = settings.max_pixels or width * height < MEGAPIXEL
    assumed = "" if limited else ", assumed"
    pictures = f"({at_once} of {width} x {height}{assumed})"
    pixels = _bytes(picture.inputs)
    sizes = {f"pixels of pictures {pictures}": at_once * pixels}
    small = album.picture(blank(min(SMALL, width * height)))
    try:
        with without_data(outline(settings, config), settings) as model:
            features, active = measure(model, settings, album.family, small, learns=learns)
    except Exception as error:  # the tower's code reads values, and fake tensors have none
        reason = shorten(first_line(error), 60, placeholder=" ...")
        return {**sizes, f"vision tower: not counted ({reason})": 0}
    size = at_once * active * pixels // _bytes(small.inputs)
    sizes[f"activations of the vision tower {pictures}"] = size
    if not learns:
        kept = settings.feature_tokens if load.shards == 1 else 0
        tokens = max(kept, count * len(picture))
        sizes[f"features of {tokens} tokens of pictures"] = features * tokens // len(small)
    return sizes


def _count(settings: Settings, load: Workload, picture: Picture) -> int:
    """The pictures of a pass."""
    if not load.decisions:
        return -(-load.sampled // load.group_size)
    length = len(picture) + settings.max_new_tokens * (1 + load.group_size)
    return min(-(-load.rollouts // load.group_size), max(1, load.decisions // length))


def measure(
    model: CausalModel, settings: Settings, family: Family, picture: Picture, *, learns: bool
) -> tuple[int, int]:
    """Bytes of a picture's features; and those that a tower which learns saves for the backward
    pass, or that a frozen one has at most at once, its features included.

    Counted by running the tower's code without data, but for integers: how many patches there are
    depends on their values.

    model: on fake tensors, in the context of `without_data`.
    """
    inputs = {
        name: torch.empty_like(value) if value.is_floating_point() else value
        for name, value in picture.inputs.items()
    }
    picture = replace(picture, inputs=inputs)
    numerics = Numerics(settings.precision, True)
    made: list[Features] = []

    def run() -> None:
        made[:] = [family.features(model.causal, [picture])]

    with model.copies.swapped_in(numerics), Allocated() as allocated:
        if learns:
            active = saved_bytes(run, model)
        else:
            with torch.no_grad():
                run()
            active = allocated.most
    return _bytes(vars(made[0])), active


class Allocated(TorchDispatchMode):
    """A context that runs operations on real tensors as they are, also among fake ones.

    Where fake tensors are compared, no value is equal to another one (so no tile is empty).

    most: bytes of the tensors that operations within it have made, at most at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = self._now = 0
        self._tensors: Counter[int] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        before = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(isinstance(tensor, FakeTensor) for tensor in before):
            if function is aten.index.Tensor:
                args = (args[0], _indices(args[1]))
            result = function(*args, **kwargs)
            if isinstance(result, Tensor) and result.dtype == torch.bool:
                different = function.overloadpacket is not aten.eq
                with unset_fake_temporarily():
                    result = torch.full(result.shape, different)
        else:
            with unset_fake_temporarily():
                result = function(*args, **kwargs)
        known = {tensor.untyped_storage()._cdata for tensor in before}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._hold(tensor, new=tensor.untyped_storage()._cdata not in known)
        return result

    def _hold(self, tensor: Tensor, *, new: bool) -> None:
        """Count a tensor's memory until the last tensor that uses it is gone."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if not (new or self._tensors[key]):
            return
        if not self._tensors[key]:
            self._now += size
            self.most = max(self.most, self._now)
        self._tensors[key] += 1
        weakref.finalize(tensor, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._tensors[key] -= 1
        if not self._tensors[key]:
            self._now -= size


def _indices(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """With numbers in the place of masks, whose counts are known here alone."""
    plain: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype != torch.bool:
            plain.append(index)
        else:
            with unset_fake_temporarily():
                plain += index.nonzero(as_tuple=True)
    return plain


def _bytes(tensors: Mapping[str, Any]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values() if tensor is not None)
