"""Text: prompts to token ids, completions back to what rewards see."""

from collections.abc import Sequence
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor

from groupwise.errors import UserError
from groupwise_llm.settings import Settings


def encode(tokenizer: Any, prompt: Any, settings: Settings, *, limit: int | None) -> Tensor:
    """Token ids of a text, or of chat messages under the model's own template.

    limit: positions the model has. Raises UserError when prompt and completion do not fit.
    """
    ids = (
        tokenizer(prompt)["input_ids"]
        if isinstance(prompt, str)
        else _chat(tokenizer, prompt, settings)
    )
    if limit is not None and len(ids) + settings.max_new_tokens > limit:
        raise UserError(
            f"a prompt of {len(ids)} tokens and max_new_tokens={settings.max_new_tokens} "
            f"exceed the {limit} positions of {settings.model}: {prompt!r}"[:500]
        )
    if not ids:
        raise UserError(f"a prompt has no tokens: {prompt!r}")
    return torch.tensor(ids, dtype=torch.int64)


def _chat(tokenizer: Any, messages: Any, settings: Settings) -> list[int]:
    if tokenizer.chat_template is None:
        raise UserError(
            f"{settings.model}: the prompt is a list of messages, but this model's "
            f"tokenizer has no chat template; give a plain string"
        )
    options = {"add_generation_prompt": True, "return_dict": True, **settings.chat_template}
    try:
        ids: list[int] = tokenizer.apply_chat_template(messages, **options)["input_ids"]
    except TemplateError as error:
        raise UserError(
            f"{settings.model}: its chat template refuses the prompt: {error}: {messages!r}"[:500]
        ) from error
    return ids


def decode(tokenizer: Any, ids: Sequence[int], prompt: Any) -> Any:
    """What rewards see: text for a text prompt, a list of one message for a chat prompt."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
