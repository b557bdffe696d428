"""Tiny random Qwen-Image-Edit 2509, and 2511 (`zero_cond_t`), made of a Qwen-Image."""

from diffusers import QwenImageEditPlusPipeline, QwenImageTransformer2DModel
from tests.flow.stand_ins.qwen_image import qwen_image
from tests.flow.stand_ins.text import qwen2_5_vl, qwen_tokenizer
from tests.flow.stand_ins.weights import awake
from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = (
    "system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. "
    "Generate a new image that meets the user's requirements while maintaining consistency with "
    "the original input where appropriate.\nuser\nassistant\n"
)
"""The pipeline drops its first 64 tokens, which is about what it has with this tokenizer."""


def qwen_image_edit(*, zero_cond_t: bool = False) -> QwenImageEditPlusPipeline:
    tokenizer = qwen_tokenizer([TEMPLATE])
    tokenizer.add_special_tokens({"additional_special_tokens": [*MARKS]})
    encoder, own = qwen2_5_vl(tokenizer), qwen_image()
    encoder.config.image_token_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    encoder.config.vision_start_token_id = tokenizer.convert_tokens_to_ids("<|vision_start|>")
    config = {**own.transformer.config, "zero_cond_t": zero_cond_t}
    return QwenImageEditPlusPipeline(
        transformer=awake(QwenImageTransformer2DModel.from_config(config)),
        vae=own.vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        processor=Qwen2VLProcessor(
            Qwen2VLImageProcessor(), tokenizer, Qwen2VLVideoProcessor(), chat_template=""
        ),
        scheduler=own.scheduler,
    )
