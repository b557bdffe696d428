"""Tiny random FLUX.2: klein, distilled and not, and dev."""

from typing import Any

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
)
from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
from tests.flow.stand_ins.text import qwen3, qwen_tokenizer
from tests.flow.stand_ins.weights import awake
from transformers import (
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralImageProcessor,
    PixtralProcessor,
    Qwen3ForCausalLM,
)

CHAT = (
    "<s>{% for message in messages %}{% if message.role == 'system' %}[SYSTEM_PROMPT]"
    "{{ message.content[0].text }}[/SYSTEM_PROMPT]{% else %}[INST]{{ message.content[0].text }}"
    "[/INST]{% endif %}{% endfor %}"
)
MISTRAL_MARKS = ("<s>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]")
IMAGE_MARKS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def klein(*, distilled: bool = False) -> Flux2KleinPipeline:
    tokenizer = qwen_tokenizer()
    return Flux2KleinPipeline(
        transformer=transformer(3 * 8, guided=False),
        vae=vae(),
        text_encoder=qwen3(Qwen3ForCausalLM, tokenizer, width=8, layers=27),
        tokenizer=tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        is_distilled=distilled,
    )


def dev() -> Flux2Pipeline:
    words = qwen_tokenizer([SYSTEM_MESSAGE], size=900)  # which then has some forty tokens
    words.add_special_tokens({"additional_special_tokens": [*MISTRAL_MARKS, *IMAGE_MARKS]})
    return Flux2Pipeline(
        transformer=transformer(3 * 8, guided=True),
        vae=vae(),
        text_encoder=mistral3(words),
        tokenizer=PixtralProcessor(PixtralImageProcessor(), words, chat_template=CHAT),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
    )


def transformer(text_width: int, *, guided: bool) -> Any:
    model = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=text_width,
        timestep_guidance_channels=16,
        axes_dims_rope=(2, 2, 2, 2),
        guidance_embeds=guided,
    )
    return awake(model)


def vae() -> AutoencoderKLFlux2:
    """With statistics of latents that are not those of a fresh model, 0 and 1."""
    model = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
        sample_size=16,
    )
    with torch.no_grad():
        model.bn.running_mean.normal_()
        model.bn.running_var.uniform_(0.5, 2.0)
    return model


def mistral3(tokenizer: Any) -> Mistral3ForConditionalGeneration:
    config = Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": len(tokenizer),
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_hidden_layers": 30,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
    )
    return Mistral3ForConditionalGeneration(config)
