"""Prompts: dataset rows to token ids, and checks of their length."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from groupwise.errors import UserError
from groupwise_llm.characters import common_prefix
from groupwise_llm.settings import Settings

BATCH = 1024
"""Texts in one call of the tokenizer."""
THINKING = re.compile(r"<think>|\[THINK\]")
"""What opens thinking, in chat templates and in prompts that end with it."""


class Prompts:
    """Token ids of prompts: plain text, or chat messages by the model's own chat template.

    positions: the model's context length, which prompt and completion share; None if unlimited.
    """

    def __init__(self, tokenizer: Any, settings: Settings, *, positions: int | None) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.positions = positions
        self._added = added_after(tokenizer)
        room = None if positions is None else positions - settings.max_new_tokens
        if room is not None and room < 1:
            raise UserError(
                f"policy.max_new_tokens: {settings.max_new_tokens} leaves no room for a prompt: "
                f"{settings.model} has {positions} positions for prompt and completion; set fewer"
            )
        limits = [limit for limit in (room, settings.max_prompt_tokens) if limit is not None]
        self.limit = min(limits) if limits else None

    @property
    def longest(self) -> int | None:
        """Most tokens that a prompt and its completion may have together; None if unlimited."""
        return None if self.limit is None else self.limit + self.settings.max_new_tokens

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """[t] token ids; of a prompt that is too long the last `limit`, or a UserError
        (`policy.long_prompts`)."""
        (ids,) = self._ids([row["prompt"]], [self._text(row["prompt"])])
        if not ids:
            raise UserError(f"a prompt has no tokens: {row['prompt']!r}")
        if self.limit is not None and len(ids) > self.limit:
            if self.settings.long_prompts != "cut":
                raise self._too_long(row, len(ids))
            ids = ids[-self.limit :]
        return torch.tensor(ids, dtype=torch.int64)

    def thinking_prefix(self, row: Mapping[str, Any]) -> str:
        """The thinking that the prompt has begun for the completion: the prompt's text from the
        opening tag on, "" if it opens none.

        Of messages that is the first tag in what the template adds for the assistant's turn, the
        difference of the prompts with and without it; a last message of the assistant belongs to
        this turn. A plain text must end with the tag: elsewhere it may only speak of it.
        """
        prompt = row["prompt"]
        text = self._text(prompt)
        if isinstance(prompt, str):
            tag = next((m for m in THINKING.finditer(text) if not text[m.end() :].strip()), None)
            return "" if tag is None else text[tag.start() :]
        if THINKING.search(text) is None:
            return ""
        before = prompt[:-1] if self._continues(prompt) else prompt
        options = {"add_generation_prompt": False, "continue_final_message": False}
        rest = self._render(before, **options) if before else ""
        tag = THINKING.search(text, common_prefix(rest, text))
        return "" if tag is None else text[tag.start() :]

    def thinking_prefixes(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """`thinking_prefix` of each row; computed once for a row that occurs several times."""
        different = {id(row): row for row in rows}
        prefixes = {key: self.thinking_prefix(row) for key, row in different.items()}
        return [prefixes[id(row)] for row in rows]

    def too_long(self, row: Mapping[str, Any]) -> bool:
        return self.limit is not None and self.lengths([row])[0] > self.limit

    def check(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Check the length of all prompts; notes say how many are skipped or cut.

        Raises UserError for a prompt without tokens, or a long one with `long_prompts: error`.
        """
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
        action = "left out" if self.settings.long_prompts == "skip" else "cut to their last tokens"
        text = f"{count} of {total} prompts are longer than {self.limit} tokens and are {action}"
        return [f"{text} (policy.long_prompts)"]

    def lengths(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Tokens of each prompt; 1 for prompts so short that they surely fit, which saves time."""
        prompts = [row["prompt"] for row in rows]
        texts = [self._text(prompt) for prompt in prompts]
        lengths = [1] * len(texts)
        counted = [number for number, text in enumerate(texts) if not self._short(text)]
        ids = self._ids([prompts[number] for number in counted], [texts[n] for n in counted])
        for number, own in zip(counted, ids, strict=True):
            lengths[number] = len(own)
        return lengths

    def _short(self, text: str) -> bool:
        # A token is at least one byte; the factor allows for normalisation, which may lengthen a
        # text, and the 64 for special tokens.
        fits = self.limit is None or 2 * len(text.encode()) + 64 <= self.limit
        return fits and bool(text.strip())

    def _ids(self, prompts: Sequence[Any], texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt, by one tokenizer call for plain texts and one for chats.

        Without the tokens that the tokenizer adds after a text (`add_eos_token: true`): the model
        is to continue the prompt, and would see it as ended.
        """
        answers: list[list[int]] = [[] for _ in texts]
        # A chat template adds the special tokens itself.
        for special in (True, False):
            places = [n for n, prompt in enumerate(prompts) if isinstance(prompt, str) is special]
            if places:
                chosen = [texts[n] for n in places]
                ids = self.tokenizer(chosen, add_special_tokens=special)["input_ids"]
                for n, own in zip(places, ids, strict=True):
                    answers[n] = own[: len(own) - self._added] if special else own
        return answers

    def _text(self, prompt: Any) -> str:
        return prompt if isinstance(prompt, str) else self._render(prompt)

    def _render(self, messages: Any, **overrides: bool) -> str:
        """Chat messages as text; a last message of the assistant is left open to be continued.

        overrides: of the arguments of `apply_chat_template`.
        """
        model = self.settings.model
        if self.tokenizer.chat_template is None:
            raise UserError(
                f"{model}: the prompt is a list of messages, but this model's "
                f"tokenizer has no chat template; use plain text (no `chat: true` in prompts), or "
                f"a model that was trained on chats"
            )
        if not (isinstance(messages, list) and all(isinstance(part, dict) for part in messages)):
            shown = shorten(repr(messages), 200, placeholder=" ...")
            raise UserError(f"a prompt must be a text or a list of messages, found {shown}")
        messages = [self._for_template(message) for message in messages]
        continues = self._continues(messages)
        options = {
            "add_generation_prompt": not continues,
            "continue_final_message": continues,
            **self.settings.chat_template,
            **overrides,
            "tokenize": False,
        }
        try:
            text: str = self.tokenizer.apply_chat_template(messages, **options)
        except Exception as error:  # templates are code, and raise anything
            raise UserError(
                f"{model}: its chat template refuses the prompt: {error}: {messages!r}"[:500]
            ) from error
        return text

    def _continues(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the completion continues the last message."""
        opened = bool(messages) and messages[-1].get("role") == "assistant"
        return bool(self.settings.chat_template.get("continue_final_message", opened))

    def _for_template(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with its parts joined to one text, where the template takes only text."""
        parts = message.get("content")
        if not isinstance(parts, list):
            return message
        for part in parts:
            if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                shown = shorten(repr(part), 200, placeholder=" ...")
                raise UserError(
                    f"{self.settings.model}: this policy reads text alone: each part of a message "
                    f"must be {{type: text, text: ...}}, found {shown}"
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
            f"set a smaller max_new_tokens or a larger max_prompt_tokens. It begins: "
            f"{str(row['prompt'])[:120]!r}"
        )


def added_after(tokenizer: Any) -> int:
    """The number of tokens that the tokenizer adds after a text."""
    whole, bare = (
        tokenizer(["word"], add_special_tokens=special)["input_ids"][0] for special in (True, False)
    )
    counts = range(len(whole) - len(bare) + 1)
    return next((n for n in counts if whole[: len(whole) - n][-len(bare) :] == bare), 0)
