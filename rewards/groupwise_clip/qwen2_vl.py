"""Qwen2-VL with tokens of a reward: transformers' own model, from the file of a reward's authors.

HPSv3 and VideoReward are such models. Their authors' packages pin transformers of 2025.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from groupwise_clip.files import quiet, reason

PLACES = ("{text_prompt}", "{prompt}")
"""What stands for the prompt in the instruction: the authors' name of it, and ours."""
EMBEDDINGS = "embed_tokens.weight"
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


class Settings(BaseModel):
    """What rewards of such a model share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instruction: str = Field(min_length=1, description="The text that the model reads.")
    text: str | None = Field(
        default=None, description="Column with the texts; null: the prompt itself."
    )
    precision: Literal["float32", "bf16"] = Field(
        default="bf16", description="Of the model's weights; the head's is float32."
    )
    device: str | None = Field(
        default=None, description="Device of the model; if unset a GPU if there is one."
    )

    @field_validator("instruction")
    @classmethod
    def _has_a_place(cls, value: str) -> str:
        if not any(place in value for place in PLACES):
            raise ValueError(f"expected a text with {PLACES[0]} in it, found {value!r:.60}")
        return value


def load(
    name: str,
    tensors: Mapping[str, Tensor],
    tokens: Sequence[str],
    *,
    precision: str,
    device: torch.device,
    source: str,
) -> tuple[Any, Any, list[int]]:
    """The model, its processor, and the ids of these tokens.

    name: folder or hub name of configuration and processor; tensors: the weights, without a head,
    with as many embeddings as the tokenizer has with these tokens, or more; source: the file that
    they come from, for messages. Raises ValueError where that fails.
    """
    from transformers import AutoConfig, AutoProcessor, Qwen2VLForConditionalGeneration

    entries = [len(each) for key, each in tensors.items() if key.endswith(EMBEDDINGS)]
    try:
        with quiet():
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            config.get_text_config().vocab_size = entries[0]  # the tokens of the reward besides
            processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
            processor.tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
            model, report = Qwen2VLForConditionalGeneration.from_pretrained(
                None,
                config=config,
                state_dict=dict(tensors),
                dtype=PRECISIONS[precision],
                output_loading_info=True,
            )
    except Exception as error:  # transformers and the hub raise a dozen kinds
        raise ValueError(f"`model`: {name!r} cannot be loaded: {reason(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{source!r} lacks {len(missing)} weights, {missing[0]!r} for example")
    model = model.eval().requires_grad_(requires_grad=False).to(device)
    return model, processor, processor.tokenizer.convert_tokens_to_ids(list(tokens))


def has_embeddings(tensors: Mapping[str, Tensor]) -> bool:
    return any(key.endswith(EMBEDDINGS) for key in tensors)


def caption_in(instruction: str, caption: str) -> str:
    """The instruction with a caption in the place of each of `PLACES`; control tokens in the
    caption are broken up."""
    for place in PLACES:
        instruction = instruction.replace(place, caption.replace("<|", "< |"))
    return instruction
