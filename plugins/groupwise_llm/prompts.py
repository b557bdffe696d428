"""Prompts: rows to token ids, those that are too long, and completions back to text."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from groupwise.errors import UserError
from groupwise_llm.settings import Settings

BATCH = 1024
"""Texts given to the tokenizer at once."""


class Prompts:
    """Token ids of prompts: of a text, or of chat messages under the model's own template.

    positions: as many as the model has, or None; prompt and completion share them.
    """

    def __init__(self, tokenizer: Any, settings: Settings, *, positions: int | None) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.positions = positions
        room = None if positions is None else positions - settings.max_new_tokens
        if room is not None and room < 1:
            raise UserError(
                f"policy.max_new_tokens: {settings.max_new_tokens} leave no room for a prompt "
                f"among the {positions} positions of {settings.model}"
            )
        limits = [limit for limit in (room, settings.max_prompt_tokens) if limit is not None]
        self.limit = min(limits) if limits else None

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """[t] token ids, the last `limit` of them where prompts are cut; UserError if too long."""
        (ids,) = self._ids([row["prompt"]], [self._text(row["prompt"])])
        if not ids:
            raise UserError(f"a prompt has no tokens: {row['prompt']!r}")
        if self.limit is not None and len(ids) > self.limit:
            if self.settings.long_prompts != "cut":
                raise self._too_long(row, len(ids))
            ids = ids[-self.limit :]
        return torch.tensor(ids, dtype=torch.int64)

    def too_long(self, row: Mapping[str, Any]) -> bool:
        return self.limit is not None and self.lengths([row])[0] > self.limit

    def check(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Look at all rows; what is done about long ones, as notes. Raises UserError."""
        rows, count, total = iter(rows), 0, 0
        while batch := list(islice(rows, BATCH)):
            total += len(batch)
            for row, length in zip(batch, self.lengths(batch), strict=True):
                if not length:
                    raise UserError(f"a prompt has no tokens: {row['prompt']!r}")
                if self.limit is None or length <= self.limit:
                    continue
                if self.settings.long_prompts == "error":
                    raise self._too_long(row, length)
                count += 1
        if not count:
            return []
        done = "left out" if self.settings.long_prompts == "skip" else "cut to their last tokens"
        text = f"{count} of {total} prompts are longer than {self.limit} tokens and are {done}"
        return [f"{text} (policy.long_prompts)"]

    def lengths(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Tokens of each prompt; 1 for those so short that they need not be counted."""
        prompts = [row["prompt"] for row in rows]
        texts = [self._text(prompt) for prompt in prompts]
        lengths = [1] * len(texts)
        counted = [number for number, text in enumerate(texts) if not self._short(text)]
        ids = self._ids([prompts[number] for number in counted], [texts[n] for n in counted])
        for number, own in zip(counted, ids, strict=True):
            lengths[number] = len(own)
        return lengths

    def _short(self, text: str) -> bool:
        # A token stands for a byte at the least; normalisation may lengthen a text, and the
        # tokenizer adds a few.
        fits = self.limit is None or 2 * len(text.encode()) + 64 <= self.limit
        return fits and bool(text.strip())

    def _ids(self, prompts: Sequence[Any], texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt, whose text is given, by one call for each kind of prompt."""
        answers: list[list[int]] = [[] for _ in texts]
        # A template writes the special tokens itself.
        for special in (True, False):
            places = [n for n, prompt in enumerate(prompts) if isinstance(prompt, str) is special]
            if places:
                chosen = [texts[n] for n in places]
                ids = self.tokenizer(chosen, add_special_tokens=special)["input_ids"]
                for n, own in zip(places, ids, strict=True):
                    answers[n] = own
        return answers

    def _text(self, prompt: Any) -> str:
        return prompt if isinstance(prompt, str) else self._render(prompt)

    def _render(self, messages: Any) -> str:
        """Chat messages as text; a last message of the assistant is left open, to go on from."""
        model = self.settings.model
        if self.tokenizer.chat_template is None:
            raise UserError(
                f"{model}: the prompt is a list of messages, but this model's "
                f"tokenizer has no chat template; give plain text (no `chat: true` in prompts), or "
                f"take a model that was trained on chats"
            )
        if not (isinstance(messages, list) and all(isinstance(part, dict) for part in messages)):
            shown = shorten(repr(messages), 200, placeholder=" ...")
            raise UserError(f"a prompt is a text or a list of messages, found {shown}")
        messages = [self._as_taken(message) for message in messages]
        opened = bool(messages) and messages[-1].get("role") == "assistant"
        options = {
            "add_generation_prompt": not opened,
            "continue_final_message": opened,
            **self.settings.chat_template,
            "tokenize": False,
        }
        try:
            text: str = self.tokenizer.apply_chat_template(messages, **options)
        except Exception as error:  # a template is a program
            raise UserError(
                f"{model}: its chat template refuses the prompt: {error}: {messages!r}"[:500]
            ) from error
        return text

    def _as_taken(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose parts are joined, where the template takes contents as text alone."""
        parts = message.get("content")
        if not isinstance(parts, list):
            return message
        for part in parts:
            if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                shown = shorten(repr(part), 200, placeholder=" ...")
                raise UserError(
                    f"{self.settings.model}: this policy reads text alone: expected parts of a "
                    f"message to be {{type: text, text: ...}}, found {shown}"
                )
        if self._takes_parts:
            return message
        return {**message, "content": "".join(part["text"] for part in parts)}

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template writes the text of a part, rather than fail at it or write it as
        Python would."""
        part = {"type": "text", "text": "word"}
        messages = [{"role": "user", "content": [part]}]
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception:  # a template is a program
            return False
        return "word" in text and "'word'" not in text and '"word"' not in text

    def _too_long(self, row: Mapping[str, Any], length: int) -> UserError:
        settings = self.settings
        own = settings.max_prompt_tokens
        if own is not None and self.limit == own:
            limit = f"policy.max_prompt_tokens: {own}"
        else:
            limit = (
                f"the {self.limit} that max_new_tokens={settings.max_new_tokens} leaves of the "
                f"{self.positions} positions of {settings.model}"
            )
        return UserError(
            f"a prompt of {length} tokens is longer than {limit}; leave such rows out "
            f"(policy.long_prompts: skip), keep their last tokens (policy.long_prompts: cut), or "
            f"make room (a smaller max_new_tokens, a larger max_prompt_tokens). It begins: "
            f"{str(row['prompt'])[:120]!r}"
        )


def written(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of tokens, without special ones."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


def as_answer(text: str, prompt: Any) -> Any:
    """What rewards see: text for a text prompt, a list of one message for a chat prompt."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
