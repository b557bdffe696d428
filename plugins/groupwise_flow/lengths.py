"""Lengths: which prompts are longer than the text encoder takes, and what becomes of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from groupwise.errors import UserError

Long = Literal["error", "skip", "cut"]

TOKENIZED_AT_ONCE = 1024


@dataclass(frozen=True)
class Limit:
    """At most `most` tokens of this tokenizer; setting: whose limit it is, for messages."""

    tokenizer: Any
    most: int
    setting: str = "policy.prompt_tokens"

    def too_long(self, prompts: Sequence[str]) -> dict[str, int]:
        """Those prompts that are too long, and how many tokens each has."""
        lengths: dict[str, int] = {}
        for start in range(0, len(prompts), TOKENIZED_AT_ONCE):
            some = list(prompts[start : start + TOKENIZED_AT_ONCE])
            # Not verbose: a tokenizer tells of long texts itself, once and in its own words.
            for prompt, ids in zip(
                some, self.tokenizer(some, verbose=False).input_ids, strict=True
            ):
                if len(ids) > self.most:
                    lengths[prompt] = len(ids)
        return lengths

    def check(self, prompts: Sequence[str]) -> None:
        """UserError for a prompt that is too long."""
        for prompt, length in self.too_long(prompts).items():
            raise UserError(
                f"a prompt has {length} tokens, and {self.setting} allows {self.most}: "
                f"{prompt[:200]!r}; policy.long_prompts: skip or cut goes on without it or its end"
            )


def check(prompts: Iterable[str], limit: Limit | None, long: Long) -> Sequence[str]:
    """Notes on prompts that are skipped or cut; UserError if neither was asked for."""
    distinct = list(dict.fromkeys(prompts))
    if limit is None:
        return ()
    if long == "error":
        limit.check(distinct)
        return ()
    count = len(limit.too_long(distinct))
    fate = "never drawn" if long == "skip" else "cut off there"
    told = (
        f"{count:,} of {len(distinct):,} prompts have more than {limit.most} tokens and are {fate}"
    )
    return (f"policy.long_prompts: {told}",) if count else ()
