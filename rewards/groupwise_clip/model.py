"""Clip: features of images and texts, computed in batches on the images' device."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from PIL.Image import Image
from torch import Tensor

from groupwise_clip.encoder import Encoder
from groupwise_clip.images import pixels
from groupwise_clip.loading import loader
from groupwise_clip.settings import ClipSettings

Item = TypeVar("Item")

_CACHED = 4096  # texts whose features are cached: 16 MB with 1024 numbers each


class Clip:
    """A frozen CLIP; features are [n, D] float32 of unit length. It is loaded at its first use."""

    def __init__(self, settings: ClipSettings) -> None:
        """Loads nothing. Raises ValueError for wrong settings."""
        self._settings = settings
        _check_device(settings.device)
        self._loader = loader(settings.model, settings.pretrained, settings.processor)
        self._encoder: Encoder | None = None
        self._default = self._device = torch.device("cpu")
        self._cache: OrderedDict[str, Tensor] = OrderedDict()

    def load(self) -> None:
        """Loads the model, if needed. Raises ValueError where that fails."""
        self._loaded()

    @property
    def width(self) -> int:
        """D, the size of a feature."""
        return self._loaded().width

    @property
    def scale(self) -> float:
        """exp(logit_scale), the factor of the cosine in the model's own logits."""
        return self._loaded().scale

    def _loaded(self) -> Encoder:
        if self._encoder is None:
            self._default = _device(self._settings.device)
            encoder = self._loader()
            encoder.module.requires_grad_(requires_grad=False)
            if self._settings.resize is not None:
                encoder.framing = encoder.framing.resized_by(self._settings.resize)
            self._encoder = encoder
            self._move(self._default)
        return self._encoder

    def cosines(
        self, images: Sequence[Tensor | Image], texts: Sequence[str | None]
    ) -> list[float | None]:
        """Returns the cosine of each image and its text, -1 to 1; None where there is no text."""
        rows = [row for row, text in enumerate(texts) if text is not None]
        values: list[float | None] = [None] * len(texts)
        if not rows:
            return values
        image_features = self.image_features([images[row] for row in rows])
        text_features = self.text_features([text for text in texts if text is not None])
        cosines = (image_features * text_features).sum(dim=1).tolist()
        for row, cosine in zip(rows, cosines, strict=True):
            values[row] = cosine
        return values

    @torch.no_grad()
    def image_features(self, images: Sequence[Tensor | Image]) -> Tensor:
        """Returns [n, D] for n images: float tensors [3, H, W] in [0, 1], or PIL images."""
        encoder = self._loaded()
        self._move(self._device_of(images))
        parts = []
        for batch in _batches(images, self._settings.batch):
            framed = pixels(batch, encoder.framing, self._device)
            with self._autocast():
                parts.append(encoder.encode_images(framed))
        return _unit(torch.cat(parts))

    @torch.no_grad()
    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Returns [n, D] for n texts; texts beyond the model's context length are cut off.

        Features of the latest some thousand texts are cached.
        """
        encoder = self._loaded()
        unknown = [text for text in dict.fromkeys(texts) if text not in self._cache]
        known = {text: self._cache[text] for text in texts if text in self._cache}
        for batch in _batches(unknown, self._settings.batch):
            with self._autocast():
                features = encoder.encode_texts(batch, self._device)
            # Copies: a view of a row would keep its whole batch in memory.
            rows = [row.clone() for row in _unit(features)]
            known.update(zip(batch, rows, strict=True))
        for text, row in known.items():
            self._cache[text] = row
            self._cache.move_to_end(text)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return torch.stack([known[text] for text in texts])

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._settings.precision == "bf16"
        )

    def _device_of(self, images: Sequence[Tensor | Image]) -> torch.device:
        """The configured device; else the device of image tensors; else the default."""
        first = images[0]
        if self._settings.device is None and isinstance(first, Tensor):
            return first.device
        return self._default

    def _move(self, device: torch.device) -> None:
        if device != self._device:
            self._loaded().module.to(device)
            self._device, self._cache = device, OrderedDict()


def _check_device(name: str | None) -> None:
    """Raise ValueError for a name that is no device's."""
    try:
        torch.device(name or "cpu")
    except RuntimeError as error:
        raise ValueError(
            f"unknown device {name!r}: expected for instance 'cpu', 'cuda' or 'cuda:1'"
        ) from error


def _device(name: str | None) -> torch.device:
    """The device of that name; for None a CUDA device if there is one; CUDA with its index."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ValueError(f"device {name!r}: there are {count} CUDA devices")
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def _batches(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _unit(features: Tensor) -> Tensor:
    """[n, D] float32 of unit length, whatever the precision of the model."""
    return torch.nn.functional.normalize(features.float(), dim=-1)
