"""Colours of objects, classified by a CLIP as in GenEval."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.kit import trust
from groupwise_verifiable.images.detection import Box, Detection
from groupwise_verifiable.images.pixels import Pixels, picture
from groupwise_verifiable.models import LazyModel, default_device, loading

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

COLORS = (
    *("red", "orange", "yellow", "green", "blue"),
    *("purple", "pink", "brown", "black", "white"),
)

QUICK = "-quickgelu"
"""Ends the names of open_clip's architectures with QuickGELU."""


class ClipColors(LazyModel[tuple[Any, Any, Any, Any]]):
    """The one of GenEval's ten colours whose text feature is nearest to that of the object's crop.

    A colour's text feature is the mean of three features of unit length: "a photo of a red car", "a
    photo of a red-colored car", "a photo of a red object". `color_classification` in
    `evaluate_images.py` of GenEval, arXiv:2310.11513, with OpenAI's ViT-L-14. GenEval first paints
    the pixels outside the object's mask gray; without masks, the background of the box stays here.

    model, pretrained: an architecture of open_clip, and its tag or a file of weights; or
    `local-dir:` and a folder, with None. device: a GPU if there is one, by default. quick_gelu: the
    activation of a file's weights; see `_is_quick`.
    """

    def __init__(
        self,
        model: str,
        pretrained: str | None,
        device: str | None = None,
        quick_gelu: bool | None = None,
    ) -> None:
        """Loads nothing. Raises ValueError for a missing open_clip or file, an unknown name, or an
        activation that is not known."""
        if find_spec("open_clip") is None:
            raise ValueError("`colors: clip` needs open_clip: pip install 'groupwise[clip]'")
        _check(model, pretrained)
        super().__init__()
        self.quick_gelu = _is_quick(model, pretrained, quick_gelu)
        self.model, self.pretrained, self.device = model, pretrained, device
        self._classifiers: dict[str, Tensor] = {}

    def __call__(self, image: Pixels, objects: Sequence[Detection]) -> list[str]:
        """Returns the name of each object's colour; image: [H, W, 3] in [0, 1]."""
        import torch

        if not objects:
            return []
        whole = picture(image)
        model, preprocess, _, device = self.loaded()
        with torch.inference_mode():
            crops = torch.stack([preprocess(_crop(whole, each.box)) for each in objects])
            features = model.encode_image(crops.to(device), normalize=True)
            texts = torch.stack([self._classifier(each.label) for each in objects])
            best = torch.einsum("nd,ndc->nc", features, texts).argmax(dim=1)
        return [COLORS[index] for index in best.tolist()]

    def _classifier(self, label: str) -> "Tensor":
        """[D, 10]: the text features of the ten colours of a class, columns of unit length."""
        import open_clip

        if label not in self._classifiers:
            phrases = (
                lambda color: f"a photo of a {color} {label}",
                lambda color: f"a photo of a {color}-colored {label}",
                lambda color: f"a photo of a {color} object",
            )
            model, _, tokenizer, device = self.loaded()
            self._classifiers[label] = open_clip.build_zero_shot_classifier(
                model, tokenizer, COLORS, phrases, device=device
            )
        return self._classifiers[label]

    def _load(self) -> tuple[Any, Any, Any, Any]:
        """Model, preprocessing of images, tokenizer and device."""
        import open_clip

        trust.ask_nobody()
        with loading(f"`clip_model`: {self.model!r} with `clip_pretrained` {self.pretrained!r}"):
            model, _, preprocess = open_clip.create_model_and_transforms(
                self.model,
                pretrained=self.pretrained,
                force_quick_gelu=self.quick_gelu,
                require_pretrained=True,
                weights_only=True,
                device=default_device(self.device),
            )
            tokenizer = open_clip.get_tokenizer(self.model)
        # The device with its index: in another thread, "cuda" may be another device.
        where = next(model.parameters()).device
        return model.eval().requires_grad_(requires_grad=False), preprocess, tokenizer, where


def _check(model: str, pretrained: str | None) -> None:
    """Raise ValueError for an unknown architecture or tag, or a file or folder that is missing."""
    if model.startswith("local-dir:"):
        folder = Path(model.removeprefix("local-dir:"))
        if not (folder / "open_clip_config.json").is_file():
            raise ValueError(
                f"`clip_model`: the folder {str(folder)!r} holds no model in open_clip's format: "
                "no open_clip_config.json"
            )
        if pretrained is not None:
            raise ValueError("`clip_pretrained`: a folder has its own weights; set it to null")
        return
    import open_clip  # only to look a name up

    if model not in open_clip.list_models():
        raise ValueError(
            f"`clip_model`: unknown architecture {model!r}; expected one of open_clip's, such as "
            "ViT-L-14, or `local-dir:` and a folder"
        )
    known = open_clip.is_pretrained_cfg(model, pretrained or "")
    if not known and not Path(pretrained or "").is_file():
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(model)) or "none"
        raise ValueError(
            f"`clip_pretrained`: {pretrained!r} is no file, and open_clip's tags for {model!r} "
            f"are: {tags}"
        )


def _is_quick(model: str, pretrained: str | None, setting: bool | None) -> bool:
    """Whether weights need QuickGELU, x sigmoid(1.702 x), where the architecture may have GELU.

    A tag says it. A file does not, and works with either, but with other features: the setting
    says it, or the architecture's name, or an open_clip_config.json beside the file. Raises
    ValueError where nothing does, or where the setting has no effect.
    """
    import open_clip

    is_file = pretrained is not None and not open_clip.is_pretrained_cfg(model, pretrained)
    if not is_file and setting is not None:
        raise ValueError(
            "`clip_quick_gelu`: only for a file as `clip_pretrained`; tags and folders say "
            "themselves which activation they need"
        )
    if pretrained is None:
        return False
    if not is_file:
        return bool(open_clip.get_pretrained_cfg(model, pretrained).get("quick_gelu", False))
    if model.endswith(QUICK) and setting is False:
        raise ValueError(f"`clip_quick_gelu`: {model!r} has QuickGELU; leave one of the two out")
    beside = Path(pretrained).with_name("open_clip_config.json")
    if setting is None and f"{model}{QUICK}" in open_clip.list_models():
        if not beside.is_file():
            raise ValueError(
                f"`clip_quick_gelu`: the weights in {pretrained!r} need the activation that they "
                f"were trained with, and a file does not say which; set it to true for QuickGELU "
                f"(OpenAI's, DFN's and MetaCLIP's) or false for GELU (most of LAION's)"
            )
        config = json.loads(beside.read_text(encoding="utf-8"))
        return bool(config.get("model_cfg", {}).get("quick_gelu", False))
    return bool(setting)


def _crop(image: "Image", box: Box) -> "Image":
    """The content of a box, at least one pixel."""
    left, top, right, bottom = map(round, box)
    left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
    right, bottom = max(left + 1, min(right, image.width)), max(top + 1, min(bottom, image.height))
    return image.crop((left, top, right, bottom))
