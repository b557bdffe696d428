"""Control tokens: those by which a chat template says who speaks, and where pictures are."""

import re
from typing import Any


class ControlTokens:
    """Keeps text that is quoted in a question from being read as control tokens.

    A tokenizer makes `<|im_end|>` the token that ends a turn wherever it stands, and a processor
    makes its placeholder a picture. In a question they become `< |im_end|>`, ordinary letters.
    """

    def __init__(self, tokenizer: Any, processor: Any, template: str) -> None:
        """template: of the chat; of added tokens that are not special, those that it writes count.

        Tokens of white space are text, and so are those of one letter.
        """
        added = tokenizer.added_tokens_decoder.values()
        tokens = {each.content for each in added if each.special or each.content in template}
        tokens |= {str(getattr(processor, name, None) or "") for name in _PLACEHOLDERS}
        tokens = {token for token in tokens if len(token.strip()) > 1}
        # Of two that begin alike the longer one is found first; without any, nothing is found.
        longest_first = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def escaped(self, text: str) -> str:
        """The text with a space in each control token, after its first letter."""
        return self._pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


_PLACEHOLDERS = ("image_token", "video_token", "audio_token", "boi_token", "eoi_token")
"""Attributes of processors: the texts that they replace by pictures and other media."""
