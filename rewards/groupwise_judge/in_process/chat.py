"""ChatFormat: from messages to the text that a model continues."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL.Image import Image

from groupwise_messages.escape import Escape, control_tokens
from groupwise_messages.texts import encodable

Message = Mapping[str, Any]
_PROBE = "groupwise"
_PLACEHOLDERS = ("image_token", "video_token", "audio_token", "boi_token", "eoi_token")
"""Attributes of processors: the texts that they replace by pictures and other media."""


class ChatFormat:
    """How a model's chat template writes messages.

    Messages are those of transformers: a content is a string, or a list of blocks
    `{"type": "text", "text": ...}` and `{"type": "image", "image": PIL}`.
    """

    def __init__(self, processor: Any, *, sees: bool, arguments: Mapping[str, Any]) -> None:
        """processor: or a tokenizer, if the model sees no pictures; arguments: of its template.

        Raises ValueError for a processor without a template: where would pictures be?
        """
        if sees and processor.chat_template is None:
            raise ValueError("its processor has no chat template, so pictures have no place")
        self._processor, self._sees, self._arguments = processor, sees, arguments
        tokenizer = processor.tokenizer if sees else processor
        template = str(processor.chat_template or "")
        media = {str(getattr(processor, name, None) or "") for name in _PLACEHOLDERS} - {""}
        self._escape = Escape(media | control_tokens(tokenizer, template, thinking=True))
        self._begin = tokenizer.bos_token
        self._takes_system = bool(template) and self._writes_system()

    def text(self, chat: Sequence[Message]) -> str:
        """The chat as text, up to where the reply begins; without a template its contents.

        What the messages contain stays text: names of control tokens in it are words. Raises
        ValueError for pictures that the model does not see.
        """
        if not self._sees and pictures(chat):
            raise ValueError("the judge reads text alone: for pictures set a vision-language model")
        if not self._takes_system:
            chat = _without_system(chat)
        if self._processor.chat_template is None:
            return "\n\n".join(block["text"] for block in _blocks(chat))
        return self._rendered([{**message, "content": self._content(message)} for message in chat])

    def adds_tokens(self, text: str) -> bool:
        """Whether special tokens are added to such a text, as transformers decides it.

        To a chat's text tokenizers add none, and processors only if it does not begin with one.
        """
        if self._processor.chat_template is None:
            return True
        return self._sees and not (self._begin is not None and text.startswith(self._begin))

    def _content(self, message: Message) -> Any:
        whole = {"content": [*map(_block, _blocks([message]))]}
        blocks = self._escape.message(whole)["content"]
        return blocks if self._sees else "".join(block["text"] for block in blocks)

    def _rendered(self, messages: Sequence[Message]) -> str:
        rendered: str = self._processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._arguments
        )
        return rendered

    def _writes_system(self) -> bool:
        """Whether the template writes a system message; some refuse it, and some drop it."""
        chat = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}]
        try:
            rendered = self._rendered([{**each, "content": self._content(each)} for each in chat])
        except Exception:  # jinja's errors, and whatever a template raises
            return False
        return _PROBE in rendered


def pictures(chat: Sequence[Message]) -> list[Image]:
    """The pictures of a chat, in order."""
    return [block["image"] for block in _blocks(chat) if block["type"] == "image"]


def _block(block: Message) -> dict[str, Any]:
    if block["type"] == "image":
        return {"type": "image"}
    return {"type": "text", "text": encodable(block["text"])}


def _blocks(chat: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    for message in chat:
        content = message["content"]
        yield from [{"type": "text", "text": content}] if isinstance(content, str) else content


def _without_system(chat: Sequence[Message]) -> Sequence[Message]:
    """The chat with its system message at the beginning of the user's."""
    first, *rest = chat
    if first["role"] != "system" or not rest:
        return chat
    opening = [{"type": "text", "text": f"{first['content']}\n\n"}]
    return [{**rest[0], "content": [*opening, *_blocks(rest[:1])]}, *rest[1:]]
