"""CLIP models in open_clip's format."""

from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor

from groupwise.kit import trust
from groupwise.kit.errors import did_you_mean
from groupwise_clip.encoder import Encoder
from groupwise_clip.files import check_file, fetched, quiet, reason
from groupwise_clip.images import Framing
from groupwise_clip.settings import HUB, LOCAL

CONFIG = "open_clip_config.json"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pth")


class OpenClip(Encoder):
    """A model of open_clip: an architecture with weights, a folder, or a model of the hub."""

    def __init__(self, name: str, pretrained: str | None = None) -> None:
        """name: as in `open_clip.create_model`; pretrained: weights of an architecture."""
        self.check(name, pretrained)
        quick = False
        if pretrained is not None and not open_clip.is_pretrained_cfg(name, pretrained):
            pretrained = fetched(pretrained, setting="pretrained")
        elif pretrained is not None:
            # Some tags' weights need QuickGELU; open_clip only warns if the model lacks it.
            quick = open_clip.get_pretrained_cfg(name, pretrained).get("quick_gelu", False)
        trust.ask_nobody()
        try:
            with quiet():
                self.module = open_clip.create_model(
                    name,
                    pretrained=pretrained,
                    force_quick_gelu=quick,
                    require_pretrained=True,
                    weights_only=True,
                ).eval()
                self._tokenizer = open_clip.get_tokenizer(name)
                self.width = int(open_clip.get_model_config(name)["embed_dim"])
        except Exception as error:  # torch, timm, the hub and JSON raise their own
            weights = f" with the weights {pretrained!r}" if pretrained else ""
            raise ValueError(
                f"model {name!r}{weights} cannot be loaded: {reason(error)}"
            ) from error
        self.scale = self.module.logit_scale.exp().item()
        self.framing = _framing(open_clip.get_model_preprocess_cfg(self.module))

    @staticmethod
    def check(name: str, pretrained: str | None = None) -> None:
        """Raises ValueError for problems that can be noticed without loading."""
        if not name.startswith((LOCAL, HUB)):
            _check_weights(name, pretrained)
        elif pretrained is not None:
            raise ValueError(f"model {name!r} has its own weights, so `pretrained` must not be set")
        elif name.startswith(LOCAL):
            _check_folder(Path(name.removeprefix(LOCAL)))

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Returns [n, D] for images [n, 3, h, w] preprocessed by `framing`; not normalised."""
        return self.module.encode_image(pixels)

    def encode_texts(self, texts: list[str], device: torch.device) -> Tensor:
        """Returns [n, D] for texts, not normalised; texts beyond the context length are cut off."""
        return self.module.encode_text(self._tokenizer(texts).to(device))


def _check_folder(folder: Path) -> None:
    """Raise ValueError unless the folder holds a model in open_clip's format."""
    if not folder.is_dir():
        raise ValueError(f"the folder {str(folder)!r} does not exist")
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"the folder {str(folder)!r} holds no model: expected {CONFIG} (open_clip's "
            "format) or config.json (transformers')"
        )
    if not any(True for pattern in _WEIGHTS for _ in folder.glob(pattern)):
        raise ValueError(
            f"the folder {str(folder)!r} holds no weights: expected open_clip_model.safetensors, "
            f"or another of {', '.join(_WEIGHTS)}"
        )


def _check_weights(name: str, pretrained: str | None) -> None:
    """Raise ValueError unless `pretrained` is a tag of the architecture or a file."""
    tags = open_clip.list_pretrained_tags_by_model(name)
    known = f"open_clip's tags for {name!r} are: {', '.join(tags) or 'none'}"
    if pretrained is None:
        raise ValueError(
            f"model {name!r} needs weights: set `pretrained` to a tag or a file; {known}"
        )
    if open_clip.is_pretrained_cfg(name, pretrained):
        return
    try:
        check_file(pretrained, setting="pretrained")
    except ValueError as error:
        if pretrained.startswith(HUB):
            raise
        raise ValueError(f"{error}, and no tag{did_you_mean(pretrained, tags)}; {known}") from error


def _framing(settings: dict[str, Any]) -> Framing:
    """The framing equal to `open_clip.image_transform` with these settings."""
    size, mean, std = settings["size"], settings["mean"], settings["std"]
    return Framing(
        size=(size, size) if isinstance(size, int) else tuple(size),
        mean=tuple(mean) if isinstance(mean, list | tuple) else (mean,) * 3,
        std=tuple(std) if isinstance(std, list | tuple) else (std,) * 3,
        resize=settings.get("resize_mode") or "shortest",
        interpolation="bilinear" if settings.get("interpolation") == "bilinear" else "bicubic",
        fill=settings.get("fill_color", 0) / 255,
    )
