"""Chat template: messages to text, by the model's own template."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from textwrap import shorten
from typing import Any

from groupwise import attachments
from groupwise.kit.errors import UserError
from groupwise_llm.codec.characters import common_prefix
from groupwise_llm.settings import Settings
from groupwise_messages.escape import Escape, control_tokens
from groupwise_messages.texts import encodable

FINISHED = {"add_generation_prompt": False, "continue_final_message": False}
"""Renders messages without the beginning of another one."""


class ChatTemplate:
    """The tokenizer's chat template, with the arguments of `policy.chat_template`."""

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        self.tokenizer, self.settings = tokenizer, settings

    def render(self, messages: Any, tools: Sequence[Any] | None = None, **overrides: bool) -> str:
        """Chat messages as text; a last message of the assistant is left open to be continued.

        tools: JSON schemas of functions; overrides: of the arguments of `apply_chat_template`.
        Raises UserError where there is no template, or it refuses the messages.
        """
        model = self.settings.model
        if not self.exists:
            raise UserError(
                f"{model}: the prompt is a list of messages, but this model's "
                f"tokenizer has no chat template; use plain text (no `chat: true` in prompts), or "
                f"a model that was trained on chats"
            )
        if not (isinstance(messages, list) and all(isinstance(part, dict) for part in messages)):
            shown = shorten(repr(messages), 200, placeholder=" ...")
            raise UserError(f"a prompt must be a text or a list of messages, found {shown}")
        messages = [self.for_template(message) for message in messages]
        continues = self.continues(messages)
        options = {
            "add_generation_prompt": not continues,
            "continue_final_message": continues,
            **({"tools": list(tools)} if tools else {}),
            **self.arguments,
            **overrides,
            "tokenize": False,
        }
        try:
            text: str = self.tokenizer.apply_chat_template(messages, **options)
        except Exception as error:  # templates are code, and raise anything
            raise UserError(
                f"{model}: its chat template refuses the prompt: {error}: "
                f"{attachments.readable(messages)!r}"[:500]
            ) from error
        return encodable(text)

    def opening(self, tools: Sequence[Any] | None = None) -> str:
        """What the template begins an assistant's turn with."""
        ask = [{"role": "user", "content": "Question?"}]
        prompt, rest = self.render(ask, tools), self.render(ask, tools, **FINISHED)
        return prompt[common_prefix(rest, prompt) :]

    @property
    def exists(self) -> bool:
        return self.tokenizer.chat_template is not None or "chat_template" in self.arguments

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The user's further arguments of `apply_chat_template`."""
        return self.settings.chat_template

    @cached_property
    def escape(self) -> Escape:
        """Of control tokens in what others write, or of none (`policy.special_tokens_in_content`).

        It is for what comes from outside: `render` also gets messages that the codec makes.
        """
        if self.settings.special_tokens_in_content == "allow":
            return Escape(())
        source = repr((self.tokenizer.chat_template, self.arguments))
        return Escape(control_tokens(self.tokenizer, source))

    def escaped(self, messages: Any) -> Any:
        """Messages from outside, as `escape` has them; anything else is left to `render`."""
        if self.settings.special_tokens_in_content == "allow" or not isinstance(messages, list):
            return messages
        return [self._escaped(own) if isinstance(own, Mapping) else own for own in messages]

    def _escaped(self, message: Mapping[str, Any]) -> dict[str, Any]:
        own = self.escape.message(message)
        if isinstance(own.get("role"), str):
            # Templates write `<|` and `|>` around it: its own signs could end that token.
            own["role"] = re.sub(r"[^\w-]", " ", own["role"])
        return own

    def continues(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the completion continues the last message."""
        opened = bool(messages) and messages[-1].get("role") == "assistant"
        return bool(self.arguments.get("continue_final_message", opened))

    def for_template(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with its parts joined to one text, where the template takes only text."""
        parts = message.get("content")
        if not isinstance(parts, list):
            return message
        for part in parts:
            if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                (readable,) = attachments.readable([{"content": [part]}])
                shown = shorten(repr(readable["content"][0]), 200, placeholder=" ...")
                raise UserError(
                    f"{self.settings.model}: this policy reads text alone: each part of a message "
                    f"must be {{type: text, text: ...}}, found {shown}; a policy "
                    f"vision_language_model reads pictures, too"
                )
        if self._takes_parts:
            return message
        return {**message, "content": "".join(part["text"] for part in parts)}

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template renders the text of a part; some fail, some render the dict's
        repr."""
        part = {"type": "text", "text": "word"}
        messages = [{"role": "user", "content": [part]}]
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception:  # templates are code, and raise anything
            return False
        return "word" in text and "'word'" not in text and '"word"' not in text
