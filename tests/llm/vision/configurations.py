"""What the tiny vision-language models of `standins` are made of, by transformers' model type.

Tiles are 16 pixels wide and have four tokens, and a picture may have several, so that pictures of
different sizes have different numbers of tokens.
"""

from dataclasses import dataclass
from typing import Any

TILE = 16
"""Pixels along the side of a tile; its patches are 4 pixels wide, and 2 x 2 of them a token."""

SPREAD = {"initializer_range": 0.2}
"""Large enough that tokens differ in probability."""

HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXT = {
    **SPREAD,
    **HEADS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
TOWER = {
    **SPREAD,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": TILE,
    "patch_size": 4,
}
QWEN_TOWER = {
    **SPREAD,
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 32,
}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}


@dataclass(frozen=True)
class StandIn:
    """What a family's tiny model is made of.

    text, vision, whole: of its configuration. tokens: special ones by the tokenizer's attributes,
    if it has such, the end of a turn as `eos_token`. ids: tokens by the configuration's keys.
    """

    processor: str
    images: str
    template: str
    text: dict[str, Any]
    vision: dict[str, Any]
    tokens: dict[str, str]
    ids: dict[str, str]
    whole: dict[str, Any]
    image_options: dict[str, Any]
    videos: str | None = None
    processor_options: dict[str, Any] | None = None
    more_tokens: tuple[str, ...] = ()
    begin: bool = False
    """Whether the tokenizer puts `bos_token` before every text."""


def _template(begin: str, text: str, end: str, image: str, answer: str, *, first: str = "") -> str:
    """A chat template: per message `begin`, its blocks, `end`; then `answer`. Jinja expressions."""
    return (
        f"{first}{{% for message in messages %}}{begin}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for block in message['content'] %}{% if block['type'] == 'image' %}"
        f"{image}{{% elif block['type'] == 'text' %}}{text}"
        f"{{% endif %}}{{% endfor %}}{{% endif %}}{end}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{answer}{{% endif %}}"
    )


BLOCK = "{{ block['text'] }}"
CHATML = ("{{ '<|im_start|>' + message['role'] + '\\n' }}", BLOCK, "{{ '<|im_end|>\\n' }}")
ASSISTANT = "{{ '<|im_start|>assistant\\n' }}"
QWEN_TEMPLATE = _template(*CHATML, "<|vision_start|><|image_pad|><|vision_end|>", ASSISTANT)
INTERNVL_TEMPLATE = _template(*CHATML, "{{ '<IMG_CONTEXT>\\n' }}", ASSISTANT)
GEMMA_TEMPLATE = _template(
    "{{ '<start_of_turn>' + message['role'].replace('assistant', 'model') + '\\n' }}",
    "{{ block['text'] | trim }}",
    "{{ '<end_of_turn>\\n' }}",
    "<start_of_image>",
    "{{ '<start_of_turn>model\\n' }}",
    first="{{ bos_token }}",
)
SMOLVLM_TEMPLATE = _template(
    "{{ message['role'] | capitalize }}:",
    " " + BLOCK,
    "{{ '<end_of_utterance>\\n' }}",
    "<image>",
    "Assistant:",
    first="<|im_start|>",
)
LLAVA_TEMPLATE = _template(
    "{% if message['role'] == 'user' %}[INST] {% else %} {% endif %}",
    BLOCK,
    "{% if message['role'] == 'user' %} [/INST]{% else %}</s>{% endif %}",
    "{{ '<image>\\n' }}",
    "",
)

CHATML_TOKENS = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
QWEN = {
    "processor": "Qwen2VLProcessor",
    "images": "Qwen2VLImageProcessor",
    "videos": "Qwen2VLVideoProcessor",
    "template": QWEN_TEMPLATE,
    "tokens": CHATML_TOKENS,
    "more_tokens": (
        "<|im_start|>",
        *(f"<|vision_{name}|>" for name in ("start", "end", "pad")),
        *("<|image_pad|>", "<|video_pad|>"),
    ),
    "ids": {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    "whole": {"tie_word_embeddings": True},
    "image_options": {
        "patch_size": 4,
        "size": {"shortest_edge": 8 * 8, "longest_edge": 32 * 32},
    },
    "text": {**TEXT, "rope_parameters": SECTIONS},
    "vision": QWEN_TOWER,
}
QWEN3 = {
    **QWEN,
    "processor": "Qwen3VLProcessor",
    "videos": "Qwen3VLVideoProcessor",
    "text": {**TEXT, "rope_parameters": {**SECTIONS, "mrope_interleaved": True}},
}
NEW_TOWER = {**QWEN_TOWER, "num_position_embeddings": 16}
DEEP_TOWER = {**NEW_TOWER, "deepstack_visual_indexes": [0, 1]}
HYBRID = {
    **TEXT,
    "head_dim": 16,
    "rope_parameters": {**SECTIONS, "mrope_interleaved": True, "partial_rotary_factor": 0.5},
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
SMOLVLM = {
    "processor": "Idefics3Processor",
    "images": "Idefics3ImageProcessor",
    "template": SMOLVLM_TEMPLATE,
    "tokens": {
        "bos_token": "<|im_start|>",
        "eos_token": "<end_of_utterance>",
        "pad_token": "<|im_end|>",
    },
    "more_tokens": (
        "<fake_token_around_image>",
        "<image>",
        "<global-img>",
        *(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)),
    ),
    "ids": {"image_token_id": "<image>"},
    "whole": {"scale_factor": 2, "tie_word_embeddings": False},
    "image_options": {
        "size": {"longest_edge": 2 * TILE},
        "max_image_size": {"longest_edge": TILE},
    },
    "processor_options": {"image_seq_len": 4},
    "text": {"model_type": "llama", **TEXT},
    "vision": TOWER,
}

STAND_INS = {
    "qwen2_vl": StandIn(
        **{
            **QWEN,
            "vision": {
                **{key: QWEN_TOWER[key] for key in ("depth", "num_heads", "patch_size")},
                **SPREAD,
                "embed_dim": 16,
                "mlp_ratio": 2,
                "hidden_size": 32,
            },
        }
    ),
    "qwen2_5_vl": StandIn(
        **{
            **QWEN,
            "processor": "Qwen2_5_VLProcessor",
            "vision": {**QWEN_TOWER, "window_size": TILE, "fullatt_block_indexes": [1]},
        }
    ),
    "qwen3_vl": StandIn(**{**QWEN3, "vision": DEEP_TOWER}),
    "qwen3_5": StandIn(**{**QWEN3, "vision": NEW_TOWER, "text": HYBRID}),
    "qwen3_vl_moe": StandIn(
        **{**QWEN3, "vision": DEEP_TOWER, "text": {**QWEN3["text"], **EXPERTS}}
    ),
    "qwen3_5_moe": StandIn(**{**QWEN3, "vision": NEW_TOWER, "text": {**HYBRID, **EXPERTS}}),
    "gemma3": StandIn(
        processor="Gemma3Processor",
        images="Gemma3ImageProcessor",
        template=GEMMA_TEMPLATE,
        begin=True,
        tokens={
            "pad_token": "<pad>",
            "eos_token": "<end_of_turn>",
            "bos_token": "<bos>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        more_tokens=("<start_of_turn>",),
        ids={
            "image_token_index": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
        whole={"mm_tokens_per_image": 4, **SPREAD},
        image_options={"size": {"height": TILE, "width": TILE}},
        processor_options={"image_seq_length": 4},
        text={
            **TEXT,
            "query_pre_attn_scalar": 8,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision={"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
    ),
    "idefics3": StandIn(**SMOLVLM),
    "smolvlm": StandIn(
        **{
            **SMOLVLM,
            "processor": "SmolVLMProcessor",
            "images": "SmolVLMImageProcessor",
            "videos": "SmolVLMVideoProcessor",
        }
    ),
    "llava_next": StandIn(
        processor="LlavaNextProcessor",
        images="LlavaNextImageProcessor",
        template=LLAVA_TEMPLATE,
        begin=True,
        tokens={"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"},
        more_tokens=("<image>",),
        ids={"image_token_index": "<image>"},
        whole={
            "image_grid_pinpoints": [[16, 32], [32, 16], [32, 32]],
            "image_seq_length": 16,
            "vision_feature_layer": -2,
        },
        image_options={
            "size": {"shortest_edge": TILE},
            "crop_size": {"height": TILE, "width": TILE},
            "image_grid_pinpoints": [[16, 32], [32, 16], [32, 32]],
        },
        processor_options={
            "patch_size": 4,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        text={"model_type": "mistral", **TEXT, "sliding_window": None},
        vision={"model_type": "clip_vision_model", **TOWER, "projection_dim": 16},
    ),
    "internvl": StandIn(
        processor="InternVLProcessor",
        images="GotOcr2ImageProcessor",
        videos="InternVLVideoProcessor",
        template=INTERNVL_TEMPLATE,
        tokens={
            **CHATML_TOKENS,
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        more_tokens=("<|im_start|>",),
        ids={"image_token_id": "<IMG_CONTEXT>"},
        whole={"image_seq_length": 4},
        image_options={
            "size": {"height": TILE, "width": TILE},
            "crop_to_patches": True,
            "max_patches": 3,
        },
        processor_options={"image_seq_length": 4},
        text={"model_type": "qwen2", **TEXT},
        vision={**TOWER, "layer_scale_init_value": 1.0},
    ),
}
"""By model type."""
