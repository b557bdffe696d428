"""Preprocessing of images for a CLIP, on the images' own device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from groupwise_messages.videos import REFUSED, is_video


@dataclass(frozen=True, kw_only=True)
class Framing:
    """How images are resized, cropped and normalised for a model.

    size: height and width of the model's input, in pixels.
    mean, std: of each channel, for values in [0, 1].
    resize: "shortest": fit the shortest edge and crop the other; "longest": fit the longest edge
        and pad the other; "squash": fit both.
    edge: the shortest edge after resizing, where it is not that of `size`.
    fill: value of padding, in [0, 1].
    rounds_down: round the offset of a crop down, as transformers does; open_clip rounds half to
        even.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: Literal["shortest", "longest", "squash"] = "shortest"
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    edge: int | None = None
    fill: float = 0.0
    rounds_down: bool = False

    def resized_by(self, way: Literal["shortest", "longest", "squash"]) -> Self:
        """Returns this framing with another way of resizing."""
        return replace(self, resize=way)


FRAMES = 4
"""Dimensions of a video's tensor: frames, channels, height, width."""
_LONGEST = 20  # largest ratio of edges: a longer image, resized by its short edge, takes memory


def images_of(
    completions: Sequence[Any], columns: Mapping[str, Sequence[Any] | None]
) -> list[Tensor | Image]:
    """Returns the tensors of the policy's fact `pixels`, else the completions, PIL images.

    A dataset's own column of that name has no tensors and is ignored. Raises ValueError for the
    first that is no image.
    """
    images = columns.get("pixels")
    if images is None or not all(isinstance(image, Tensor) for image in images):
        images = completions
    return [_checked(image, index) for index, image in enumerate(images)]


def _checked(image: Any, index: int) -> Tensor | Image:
    if is_video(image) or (isinstance(image, Tensor) and image.ndim == FRAMES):
        raise ValueError(f"image {index}: expected a PIL image or a tensor, found {REFUSED}")
    if isinstance(image, Tensor):
        if not (image.ndim == 3 and image.shape[0] == 3 and image.is_floating_point()):
            raise ValueError(
                f"image {index}: expected a float tensor [3, height, width] in [0, 1], "
                f"found {list(image.shape)} {str(image.dtype).removeprefix('torch.')}"
            )
        height, width = image.shape[1:]
    elif isinstance(image, Image):
        width, height = image.size
    else:
        raise ValueError(
            f"image {index}: expected a PIL image or a tensor, found {type(image).__name__}"
        )
    if not max(width, height) <= _LONGEST * min(width, height) > 0:
        raise ValueError(
            f"image {index}: expected edges above 0 with a ratio of at most {_LONGEST}, found "
            f"{width} x {height} pixels"
        )
    return image


def pixels(images: Sequence[Tensor | Image], framing: Framing, device: torch.device) -> Tensor:
    """Returns n images, float tensors [3, H, W] in [0, 1] or PIL images, as input [n, 3, h, w].

    The same as open_clip's own preprocessing of PIL images, except that nothing is rounded to
    bytes.
    """
    tensors = [_tensor(image, device) for image in images]
    if len({tensor.shape for tensor in tensors}) == 1:
        return _framed(torch.stack(tensors), framing)
    return torch.cat([_framed(tensor.unsqueeze(0), framing) for tensor in tensors])


def _tensor(image: Tensor | Image, device: torch.device) -> Tensor:
    """[3, H, W] float32 of a tensor or a PIL image."""
    if isinstance(image, Image):
        return functional.pil_to_tensor(image.convert("RGB")).to(device).float() / 255
    return image.detach().to(device).float()


def _framed(images: Tensor, framing: Framing) -> Tensor:
    """[n, 3, H, W] -> [n, 3, h, w], resized, cropped or padded, and normalised."""
    target = _resized(images.shape[-2], images.shape[-1], framing)
    images = functional.resize(
        images, list(target), InterpolationMode(framing.interpolation), antialias=True
    )
    images = _centred(images.clamp(0, 1), framing)  # bicubic resizing overshoots
    return functional.normalize(images, list(framing.mean), list(framing.std))


def _resized(height: int, width: int, framing: Framing) -> tuple[int, int]:
    """The size that an image is resized to, edges rounded as in open_clip."""
    to_height, to_width = framing.size
    if framing.resize == "squash":
        return framing.size
    if framing.resize == "shortest" and (framing.edge or to_height == to_width):
        # torchvision's and transformers' rule for a single edge: the other one is rounded down.
        edge = framing.edge or to_height
        if height <= width:
            return edge, int(edge * width / height)
        return int(edge * height / width), edge
    ratios = height / to_height, width / to_width
    ratio = max(ratios) if framing.resize == "longest" else min(ratios)
    return max(1, round(height / ratio)), max(1, round(width / ratio))


def _centred(images: Tensor, framing: Framing) -> Tensor:
    """Pads and crops around the middle to the model's size."""
    height, width = framing.size
    down, across = height - images.shape[-2], width - images.shape[-1]
    if down > 0 or across > 0:
        down, across = max(0, down), max(0, across)
        sides = [across // 2, down // 2, across - across // 2, down - down // 2]
        images = functional.pad(images, sides, fill=framing.fill)
    top, left = images.shape[-2] - height, images.shape[-1] - width
    if framing.rounds_down:
        top, left = top // 2, left // 2
    else:
        top, left = round(top / 2), round(left / 2)
    return images[..., top : top + height, left : left + width]
