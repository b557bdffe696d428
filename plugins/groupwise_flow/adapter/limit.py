"""Limit: how long a prompt may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.errors import UserError

TOKENIZED_AT_ONCE = 1024


@dataclass(frozen=True)
class Limit:
    """At most `most` tokens of this tokenizer; setting: source of the limit, for messages."""

    tokenizer: Any
    most: int
    setting: str = "policy.prompt_tokens"

    def too_long(self, prompts: Sequence[str]) -> dict[str, int]:
        """The prompts that are too long, with their numbers of tokens."""
        lengths: dict[str, int] = {}
        for start in range(0, len(prompts), TOKENIZED_AT_ONCE):
            some = list(prompts[start : start + TOKENIZED_AT_ONCE])
            # Not verbose: else the tokenizer prints its own warning about long texts.
            for prompt, ids in zip(
                some, self.tokenizer(some, verbose=False).input_ids, strict=True
            ):
                if len(ids) > self.most:
                    lengths[prompt] = len(ids)
        return lengths

    def check(self, prompts: Sequence[str]) -> None:
        """Raise UserError for a prompt that is too long."""
        for prompt, length in self.too_long(prompts).items():
            raise UserError(
                f"a prompt has {length} tokens, and {self.setting} allows {self.most}: "
                f"{prompt[:200]!r}; set policy.long_prompts: skip to leave out such prompts, or "
                f"cut to cut off their end"
            )
