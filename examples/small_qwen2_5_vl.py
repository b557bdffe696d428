"""A Qwen2.5-VL of about a million parameters, and its processor.

The architecture is the real one, with smaller sizes: 2 x 2 patches of 4 pixels make a token, so a
picture of 32 pixels has 16. `count_shapes/make_base.py` trains it.
"""

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

PATCH = 4
"""Pixels along the side of a patch."""

START, IMAGE, VIDEO, STOP = "<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>"
VISION_TOKENS = [START, IMAGE, VIDEO, STOP]
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for block in message['content'] %}{% if block['type'] == 'image' %}"
    f"{START}{IMAGE}{STOP}"
    "{% else %}{{ block['text'] }}{% endif %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
)
"""Messages one below the other, each with its blocks in order."""


def make_processor(tokenizer: PreTrainedTokenizerFast, *, side: int) -> Qwen2_5_VLProcessor:
    """A processor of pictures of at most side x side pixels; adds its tokens to the tokenizer."""
    tokenizer.add_special_tokens({"additional_special_tokens": VISION_TOKENS})
    images = Qwen2VLImageProcessor(
        patch_size=PATCH, size={"shortest_edge": (4 * PATCH) ** 2, "longest_edge": side**2}
    )
    return Qwen2_5_VLProcessor(
        images, tokenizer, Qwen2VLVideoProcessor(patch_size=PATCH), chat_template=CHAT_TEMPLATE
    )


def make_model(
    processor: Qwen2_5_VLProcessor,
    *,
    positions: int,
    width: int = 128,
    layers: int = 4,
    tower_width: int = 64,
    tower_layers: int = 4,
) -> Qwen2_5_VLForConditionalGeneration:
    """A model with random weights; positions: most tokens of prompt, pictures and answer together.

    width, layers: of the language model; tower_width, tower_layers: of the vision tower, whose
    last layer attends to the whole picture, the others within windows of 4 x 4 tokens.
    """
    tokenizer = processor.tokenizer
    heads = 4
    # Of a head's rotary frequencies, half turn with time, a quarter each with row and column.
    frequencies = width // heads // 2
    sections = [frequencies // 2, frequencies // 4, frequencies // 4]
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 2,
            "max_position_embeddings": positions,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": sections,
            },
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": tower_layers,
            "hidden_size": tower_width,
            "intermediate_size": 3 * tower_width,
            "num_heads": 4,
            "patch_size": PATCH,
            "out_hidden_size": width,
            "window_size": 8 * PATCH,
            "fullatt_block_indexes": [tower_layers - 1],
        },
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        video_token_id=tokenizer.convert_tokens_to_ids(VIDEO),
        vision_start_token_id=tokenizer.convert_tokens_to_ids(START),
        vision_end_token_id=tokenizer.convert_tokens_to_ids(STOP),
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration(config)
