"""Loading a CLIP by name, in open_clip's or transformers' format."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import open_clip

from groupwise.kit.errors import did_you_mean
from groupwise_clip.encoder import Encoder
from groupwise_clip.open_clip_format import CONFIG, OpenClip
from groupwise_clip.settings import HUB, LOCAL
from groupwise_clip.siglip_format import TYPES, SiglipVision
from groupwise_clip.transformers_format import Transformers, model_type


def load(name: str, pretrained: str | None = None, processor: str | None = None) -> Encoder:
    """Returns the model of a name, in either format. Raises ValueError where that fails."""
    return loader(name, pretrained, processor)()


def loader(
    name: str, pretrained: str | None = None, processor: str | None = None
) -> Callable[[], Encoder]:
    """Checks the settings, and returns a function that loads the model.

    Reads no weights and does not contact the hub. Raises ValueError for wrong settings.
    """
    format_, name = _format(name)
    if format_ is OpenClip:
        if processor is not None:
            raise ValueError(
                f"`processor` is for models in transformers' format, {name!r} is open_clip's"
            )
        OpenClip.check(name, pretrained)
        return partial(OpenClip, name, pretrained)
    if pretrained is not None:
        raise ValueError(f"model {name!r} has its own weights, so `pretrained` must not be set")
    if processor is not None and not Path(processor).is_dir() and _is_path(processor):
        raise ValueError(f"`processor`: the folder {processor!r} does not exist")
    return partial(_of_transformers, name, processor)


def _of_transformers(name: str, processor: str | None) -> Encoder:
    """A CLIP, or the vision tower of a SigLIP, by the type in its configuration."""
    kind = SiglipVision if model_type(name) in TYPES else Transformers
    return kind(name, processor)


def _format(name: str) -> tuple[type[Encoder], str]:
    """The class for a model's format, and the name as that class takes it."""
    folder = Path(name.removeprefix(LOCAL))
    if name.startswith(HUB):
        return OpenClip, name
    if name.startswith(LOCAL) or folder.is_dir():
        transformers = (folder / "config.json").is_file()
        if transformers and not (folder / CONFIG).is_file():
            return Transformers, str(folder)
        return OpenClip, f"{LOCAL}{folder}"
    known = open_clip.list_models()
    if name.replace("/", "-") in known:  # OpenAI writes "ViT-B/32"
        return OpenClip, name.replace("/", "-")
    if folder.is_file():
        raise ValueError(
            f"expected a model, found the file {name!r}; weights are set by `pretrained`"
        )
    if "/" not in name:
        raise ValueError(
            f"unknown model {name!r}{did_you_mean(name, known)}; expected an architecture of "
            f"open_clip's, a folder, `{HUB}NAME`, or the hub name of a transformers model"
        )
    if _is_path(name):
        raise ValueError(f"the folder {name!r} does not exist")
    return Transformers, name


def _is_path(name: str) -> bool:
    """Whether a name is a path rather than a hub name."""
    return name.count("/") > 1 or name.startswith(("/", ".", "~"))
