"""A reward for beautiful images, predicted by a small network from CLIP features."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.kit.options import PathOrName
from groupwise_clip.files import check_file, fetched, read_tensors
from groupwise_clip.images import images_of
from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings

# "weight", "7.weight", "layers.7.weight"
_NAME = re.compile(r"(?:(?:\w+\.)*?(\d+)\.)?(weight|bias)")


class Aesthetic:
    """How beautiful a picture is: a head, such as LAION's, on its CLIP features.

    The head is linear or of several layers, and its features have unit length.

    LAION's improved aesthetic predictor has five layers, 768 -> 1024 -> 128 -> 64 -> 16 -> 1,
    with only dropout between them, on OpenAI's ViT-L/14, trained on ratings from 1 to 10
    (simple_inference.py in github.com/christophschuhmann/improved-aesthetic-predictor). Version 2.5
    is such a head, 1152 -> 1024 -> 128 -> 64 -> 16 -> 1, on the pooled features of SigLIP:
    `model: google/siglip-so400m-patch14-384`, and as `head` the file aesthetic_predictor_v2_5.pth
    (github.com/discus0434/aesthetic-predictor-v2-5); 5.5 is a good value of it.
    """

    judges = False

    class Config(ClipSettings):
        """Settings of the reward `aesthetic`."""

        head: PathOrName = Field(
            min_length=1,
            description="The head's weights: a .safetensors or .pt file, or "
            "`hf-hub:OWNER/NAME/FILE`.",
        )
        activation: Literal["none", "relu"] = Field(
            default="none",
            description="Activation between the head's layers, which a file of weights does not "
            "state: none for LAION's predictor, relu for its variants called reluMSE.",
        )

    def __init__(self, config: Config) -> None:
        """Loads nothing. Raises ValueError for wrong settings."""
        self.config, self.clip = config, Clip(config)
        check_file(config.head, setting="head")
        self._head: nn.Sequential | None = None

    def load(self) -> None:
        """Loads head and model, if needed, and checks that their sizes match."""
        _ = self.head

    @property
    def head(self) -> nn.Sequential:
        """The network on the features, loaded at its first use."""
        if self._head is None:
            self._head = self._loaded()
        return self._head

    def _loaded(self) -> nn.Sequential:
        path = self.config.head
        network = head(read_tensors(fetched(path, setting="head")), path, self.config.activation)
        width = next(network.parameters()).shape[1]
        if width != self.clip.width:
            raise ValueError(
                f"the head {path!r} takes features of {width} numbers, "
                f"but the model {self.config.model!r} gives {self.clip.width}"
            )
        return network

    @torch.no_grad()
    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each image: `pixels` [3, H, W] if provided, else completions."""
        features = self.clip.image_features(images_of(completions, columns))
        values: list[float | None] = self.head.to(features.device)(features).squeeze(1).tolist()
        return values


def head(
    tensors: Mapping[str, Tensor], path: str, activation: str = "none", *, outputs: int = 1
) -> nn.Sequential:
    """Returns the frozen network of a state dict, [n, D] -> [n, outputs].

    Layers are inferred from the shapes, and ordered by the numbers in their names.
    """
    layers = [_linear(*layer, path) for layer in _layers(tensors, path)]
    for before, after in pairwise(layers):
        if before.out_features != after.in_features:
            raise ValueError(
                f"{path!r} is no chain of layers: one gives {before.out_features} numbers, "
                f"the next takes {after.in_features}"
            )
    if layers[-1].out_features != outputs:
        raise ValueError(
            f"{path!r} gives {layers[-1].out_features} numbers for an image, expected {outputs}"
        )
    modules: list[nn.Module] = [layers[0]]
    for layer in layers[1:]:
        modules += [nn.ReLU(), layer] if activation == "relu" else [layer]
    return nn.Sequential(*modules).eval().requires_grad_(requires_grad=False)


def _layers(tensors: Mapping[str, Tensor], path: str) -> list[tuple[Tensor, Tensor | None]]:
    """(weight, bias or None) of each layer, in order."""
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(
                f"{path!r} is no head of linear layers: it holds {name!r}, expected names such as "
                "'layers.0.weight', '0.weight' or 'weight'"
            )
        layers.setdefault(int(match[1] or 0), {})[match[2]] = tensor
    if not layers or not all("weight" in layer for layer in layers.values()):
        raise ValueError(
            f"{path!r} is no head of linear layers: a layer without a weight, or none at all"
        )
    return [(layer["weight"], layer.get("bias")) for _, layer in sorted(layers.items())]


def _linear(weight: Tensor, bias: Tensor | None, path: str) -> nn.Linear:
    """A layer with these weights, in float32."""
    if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = f"{list(weight.shape)}" + ("" if bias is None else f" and {list(bias.shape)}")
        raise ValueError(
            f"{path!r} is no head of linear layers: it holds weights of the shape {shapes}"
        )
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight, **({} if bias is None else {"bias": bias})})
    return layer
