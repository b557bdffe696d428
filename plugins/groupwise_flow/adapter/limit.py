"""Limit: how long a prompt may be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.kit.errors import UserError

TOKENIZED_AT_ONCE = 1024


@dataclass(frozen=True)
class Limit:
    """At most `most` tokens of this tokenizer.

    setting: source of the limit, for messages; template: the text that is encoded for a prompt;
    uncounted: its tokens that are on top of `most`, such as those of an instruction.
    """

    tokenizer: Any
    most: int
    setting: str = "policy.prompt_tokens"
    template: Callable[[str], str] | None = None
    uncounted: int = 0

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        """Of each prompt the number of tokens that count."""
        lengths: list[int] = []
        for start in range(0, len(prompts), TOKENIZED_AT_ONCE):
            some = list(prompts[start : start + TOKENIZED_AT_ONCE])
            texts = some if self.template is None else [self.template(prompt) for prompt in some]
            # Not verbose: else the tokenizer prints its own warning about long texts.
            ids = self.tokenizer(texts, verbose=False).input_ids
            lengths += [len(each) - self.uncounted for each in ids]
        return lengths

    def too_long(self, prompts: Sequence[str]) -> dict[str, int]:
        """The prompts that are too long, with their numbers of tokens."""
        lengths = zip(prompts, self.lengths(prompts), strict=True)
        return {prompt: length for prompt, length in lengths if length > self.most}

    def check(self, prompts: Sequence[str]) -> None:
        """Raise UserError for a prompt that is too long."""
        around = "" if self.template is None else " with the model's template around it"
        for prompt, length in self.too_long(prompts).items():
            raise UserError(
                f"a prompt has {length} tokens{around}, and {self.setting} allows {self.most}: "
                f"{prompt[:200]!r}; set policy.long_prompts: skip to leave out such prompts, or "
                f"cut to cut off their end"
            )
