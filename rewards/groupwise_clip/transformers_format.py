"""CLIP models in transformers' format."""

from typing import Any

import open_clip
import torch
from torch import Tensor

from groupwise.kit.errors import did_you_mean
from groupwise_clip.encoder import Encoder
from groupwise_clip.files import quiet, reason
from groupwise_clip.images import Framing


class Transformers(Encoder):
    """A CLIPModel of transformers, with its tokenizer and image processor."""

    def __init__(self, name: str, processor: str | None = None) -> None:
        """name: folder or hub name; processor: the same for tokenizer and image processor."""
        transformers = _transformers(name)
        source = processor or name
        try:
            with quiet():
                config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
                if config.model_type != "clip":
                    raise ValueError(
                        f"expected a model of type 'clip', found {config.model_type!r}"
                    )
                model, report = transformers.CLIPModel.from_pretrained(
                    name, dtype=torch.float32, output_loading_info=True, use_safetensors=True
                )
        except Exception as error:  # transformers, the hub and safetensors raise a dozen kinds
            close = did_you_mean(name.replace("/", "-"), open_clip.list_models())
            raise ValueError(
                f"model {name!r} cannot be loaded by transformers{close}: {reason(error, name)}"
            ) from error
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])
            raise ValueError(
                f"model {name!r} lacks {len(missing)} of its weights, {missing[0]!r} for example"
            )
        try:
            with quiet():
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                    source, trust_remote_code=False
                )
                images = transformers.CLIPImageProcessor.from_pretrained(source)
        except Exception as error:  # as above
            raise ValueError(
                f"no tokenizer and image processor can be loaded from {source!r}, "
                f"set `processor` to another folder or hub name: {reason(error)}"
            ) from error
        tokens, entries = len(self._tokenizer), config.text_config.vocab_size
        if not entries / 2 < tokens <= entries:  # for missing files transformers makes an empty one
            raise ValueError(
                f"the tokenizer of {source!r} has {tokens} entries, but the model {name!r} has "
                f"{entries}: set `processor` to another folder or hub name"
            )
        self.module = model.eval()
        self.width = int(config.projection_dim)
        self.scale = model.logit_scale.exp().item()
        self.framing = _framing(images)
        self._context = int(config.text_config.max_position_embeddings)

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Returns [n, D] for images [n, 3, h, w] preprocessed by `framing`; not normalised."""
        return _pooled(self.module.get_image_features(pixel_values=pixels))

    def encode_texts(self, texts: list[str], device: torch.device) -> Tensor:
        """Returns [n, D] for texts, not normalised; texts beyond the context length are cut off."""
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._context, return_tensors="pt"
        ).to(device)
        return _pooled(
            self.module.get_text_features(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            )
        )


def model_type(name: str) -> str | None:
    """The type in a model's configuration; None if it cannot be read, which loading explains."""
    try:
        with quiet():
            config = _transformers(name).AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception:
        return None
    return str(config.model_type)


def _framing(processor: Any) -> Framing:
    """The framing equal to this CLIPImageProcessor."""
    crop, size = dict(processor.crop_size or processor.size), dict(processor.size)
    edge = size.get("shortest_edge")
    return Framing(
        size=(crop["height"], crop["width"]),
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        resize="shortest" if edge else "squash",
        interpolation="bilinear" if int(processor.resample) == 2 else "bicubic",
        edge=edge,
        rounds_down=True,
    )


def _transformers(name: str) -> Any:  # the module
    try:
        import transformers
    except ImportError as error:
        raise ValueError(f"model {name!r} needs transformers: pip install transformers") from error
    transformers.utils.logging.disable_progress_bar()  # it would break the run's own line
    return transformers


def _pooled(output: Any) -> Tensor:
    """The features: transformers 5 returns them within an output, earlier versions directly."""
    return output if isinstance(output, Tensor) else output.pooler_output
