"""Models built from their published configurations, without device, hub or weights."""

import importlib
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
QWEN2 = {"model_type": "qwen2", "vocab_size": 152064, "tie_word_embeddings": False}
TEXTS: dict[str, dict[str, Any]] = {
    "Qwen2.5-7B": {
        **QWEN2,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "Qwen2.5-32B": {
        **QWEN2,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
    "Llama-3.1-8B": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "Llama-3.1-70B": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "Qwen2.5-72B": {
        **QWEN2,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "Qwen3-32B": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
"""Values of the config.json of each model."""


@dataclass(frozen=True)
class Text:
    """A language model. met: weights that multiply a token, all but the input embedding; heads:
    width of all attention heads; cached: bytes of a token in the cache."""

    name: str
    weights: int
    met: int
    layers: int
    heads: int
    cached: int

    def forward(self, tokens: float, context: float) -> float:
        """FLOPs of `tokens` tokens, each of which attends to `context` others."""
        return tokens * (2 * self.met + 4 * self.layers * self.heads * context)


@dataclass(frozen=True)
class Image:
    """A transformer for images. flops: of a forward pass with one image."""

    name: str
    weights: int
    blocks: int
    flops: float


def text_config(name: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**{"max_position_embeddings": 32768, **TEXTS[name]})


def text(name: str) -> Text:
    import torch
    from transformers import AutoModelForCausalLM

    config = text_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = sum(p.numel() for p in model.parameters())
    head = config.hidden_size // config.num_attention_heads
    head = getattr(config, "head_dim", None) or head
    return Text(
        name=name,
        weights=weights,
        met=weights - model.get_input_embeddings().weight.numel(),
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads * head,
        cached=2 * 2 * config.num_hidden_layers * config.num_key_value_heads * head,
    )


def flux() -> Any:
    """FLUX.1-dev's pipeline."""
    import diffusers
    import torch
    import transformers

    clip = transformers.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    t5 = transformers.T5Config(
        d_model=4096,
        d_ff=10240,
        d_kv=64,
        num_heads=64,
        num_layers=24,
        feed_forward_proj="gated-gelu",
        vocab_size=32128,
    )
    with torch.device("meta"):
        return diffusers.FluxPipeline(
            transformer=diffusers.FluxTransformer2DModel(guidance_embeds=True),
            vae=diffusers.AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(128, 256, 512, 512),
                layers_per_block=2,
                latent_channels=16,
            ),
            text_encoder=transformers.CLIPTextModel(clip),
            text_encoder_2=transformers.T5EncoderModel(t5),
            tokenizer=None,
            tokenizer_2=None,
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        )


def qwen_image() -> Any:
    """Qwen-Image's pipeline."""
    import diffusers
    import torch
    import transformers

    words = {key: TEXTS["Qwen2.5-7B"][key] for key in TEXTS["Qwen2.5-7B"] if key != "model_type"}
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
    config = transformers.Qwen2_5_VLConfig(
        text_config=words, vision_config={**vision, "out_hidden_size": 3584}
    )
    with torch.device("meta"):
        return diffusers.QwenImagePipeline(
            transformer=diffusers.QwenImageTransformer2DModel(),
            vae=diffusers.AutoencoderKLQwenImage(),
            text_encoder=transformers.Qwen2_5_VLForConditionalGeneration(config),
            tokenizer=None,
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        )


@contextmanager
def qwen_adapter() -> Iterator[Any]:
    """The adapter for Qwen-Image from docs/plugins.md."""
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(# qwen_image\.py\n.*?)```", page, re.DOTALL)
    assert block is not None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "qwen_image.py").write_text(block[1], encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            yield importlib.import_module("qwen_image").QwenImage
        finally:
            sys.path.remove(folder)


def forward_flops(transformer: Any, *, side: int, prompt: int) -> float:
    """FLOPs of one image of `side` pixels with `prompt` tokens, counted by running the code."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    tokens = (side // 16) ** 2
    config = transformer.config
    with torch.device("meta"):
        inputs = {
            "hidden_states": torch.empty(1, tokens, config.in_channels),
            "timestep": torch.empty(1),
            "encoder_hidden_states": torch.empty(1, prompt, config.joint_attention_dim),
        }
        if "pooled_projection_dim" in config:
            inputs |= {
                "pooled_projections": torch.empty(1, config.pooled_projection_dim),
                "guidance": torch.empty(1),
                "txt_ids": torch.empty(prompt, 3),
                "img_ids": torch.empty(tokens, 3),
            }
        else:
            inputs["img_shapes"] = [(1, side // 16, side // 16)]
            inputs["encoder_hidden_states_mask"] = torch.ones(1, prompt, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        transformer(**inputs)
    return float(counter.get_total_flops())
