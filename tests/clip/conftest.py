"""Tiny CLIPs with random weights in both formats, and smooth random images."""

import json
from itertools import pairwise
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms.v2 import functional

WIDTH = 24
MODEL = {
    "embed_dim": WIDTH,
    "vision_cfg": {
        "image_size": 32,
        "layers": 2,
        "width": 32,
        "head_width": 16,
        "patch_size": 8,
    },
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


def random_weights(model: torch.nn.Module) -> torch.nn.Module:
    """Random weights, large enough that features differ between images and between texts."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "logit_scale" not in name:
                drawn = torch.randn(parameter.shape, generator=generator)
                is_gain = parameter.ndim == 1 and name.endswith("weight")
                parameter.copy_(1 + 0.1 * drawn if is_gain else 0.2 * drawn)
    return model.eval()


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """folder_of(vision={...}, preprocess={...}, **model_cfg) -> a folder in open_clip's format."""
    folders = {}

    def folder(vision=None, preprocess=None, **changes):
        key = repr((vision, preprocess, changes))
        if key not in folders:
            path = tmp_path_factory.mktemp("open_clip")
            vision_cfg = MODEL["vision_cfg"] | (vision or {})
            config = MODEL | {"vision_cfg": vision_cfg} | changes
            contents = {"model_cfg": config, "preprocess_cfg": preprocess or {}}
            (path / "open_clip_config.json").write_text(json.dumps(contents))
            model = random_weights(open_clip.model.CLIP(**config))
            save_file(model.state_dict(), path / "open_clip_model.safetensors")
            folders[key] = path
        return folders[key]

    return folder


@pytest.fixture(scope="session")
def folder(folder_of):
    return folder_of()


@pytest.fixture
def architecture(tmp_path, monkeypatch):
    """The name of an architecture that is registered in open_clip during the test."""
    factory = open_clip.factory
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", dict(factory._MODEL_CONFIGS))
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", list(factory._MODEL_CONFIG_PATHS))
    (tmp_path / "ViT-Tiny-8.json").write_text(json.dumps(MODEL))
    open_clip.add_model_config(tmp_path / "ViT-Tiny-8.json")
    return "ViT-Tiny-8"


@pytest.fixture(scope="session")
def load_open_clip():
    """load_open_clip(folder) -> open_clip's own model, preprocessing and tokenizer."""

    def load(folder):
        name = f"local-dir:{folder}"
        model, _, preprocess = open_clip.create_model_and_transforms(name)
        return model.eval(), preprocess, open_clip.get_tokenizer(name)

    return load


@pytest.fixture(scope="session")
def transformers_folder(tmp_path_factory):
    """A CLIPModel with tokenizer and image processor; the legacy end token, as for PickScore."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

    path = tmp_path_factory.mktemp("transformers")
    common = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    # The end token has the largest id, as in CLIP's vocabulary: models look for the largest.
    letters = list(SimpleTokenizer().byte_encoder.values())
    entries = [*letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    vocabulary |= {"<|startoftext|>": len(entries), "<|endoftext|>": len(entries) + 1}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[])
    text = {**common, "vocab_size": len(vocabulary), "max_position_embeddings": 16}
    text |= {"eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}
    config = CLIPConfig(
        text_config=text,
        vision_config={**common, "image_size": 32, "patch_size": 8},
        projection_dim=WIDTH,
    )
    random_weights(CLIPModel(config)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(path)
    return path


def picture(seed: int, height: int = 48, width: int = 48) -> torch.Tensor:
    """A smooth image [3, height, width] in [0, 1], rounded to multiples of 1/255."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(3, 5, 5, generator=generator)
    smooth = functional.resize(coarse, [height, width], antialias=True)
    smooth += 0.02 * torch.randn(3, height, width, generator=generator)
    return (smooth.clamp(0, 1) * 255).round() / 255


def as_pil(image: torch.Tensor) -> Image.Image:
    return functional.to_pil_image((image * 255).round().to(torch.uint8))


@pytest.fixture
def pictures():
    """pictures(*seeds, height=, width=) -> tensors."""
    return lambda *seeds, **size: [picture(seed, **size) for seed in seeds]


@pytest.fixture
def pil():
    """pil(tensors) -> the same as PIL images."""
    return lambda images: [as_pil(image) for image in images]


TEXTS = ["a red square", "two cats on a sofa", "the sea", "a red square"]


@pytest.fixture
def texts():
    return list(TEXTS)


@pytest.fixture
def head(tmp_path):
    """head(*widths, name=) -> the path of linear layers with these numbers of features."""

    def save(*widths, prefix="layers.", step=2, name="head.safetensors", bias=True) -> Path:
        generator = torch.Generator().manual_seed(5)
        tensors = {}
        for number, (before, after) in enumerate(pairwise(widths)):
            at = f"{prefix}{number * step}."
            tensors[f"{at}weight"] = torch.randn(after, before, generator=generator)
            if bias:
                tensors[f"{at}bias"] = torch.randn(after, generator=generator)
        if name.endswith("safetensors"):
            save_file(tensors, tmp_path / name)
        else:
            torch.save(tensors, tmp_path / name)
        return tmp_path / name

    return save
