"""At which character of a completion's text each of its tokens ends."""

from collections.abc import Sequence
from typing import Any

from groupwise_llm.prompts import decoded

UNKNOWN = "\ufffd"
"""The character that bytes decode to where they are no complete character."""


def ends(tokenizer: Any, ids: Sequence[int], text: str) -> list[int]:
    """For each token of a completion, the number of characters of its text decoded up to it.

    text: what the tokens decode to, without special tokens. A character of several tokens
    (byte-level BPE) counts for the last of them; a special token adds nothing; the last entry is
    `len(text)`.

    Entry i is the length of the longest beginning of the text that tokens 0 to i decode to. To keep
    the time linear in the tokens, only a window of the last few tokens is decoded. The window
    starts early enough that its tokens decode as they do within the whole text: a tokenizer may
    decode the first token of a text differently (without its space, for example).
    """
    places: list[int] = []
    start, origin = 0, 0  # ids[start:] are decoded, and begin at this character
    behind = 0  # ids[start:behind] decode to text[origin:done]
    done = 0
    for stop in range(1, len(ids) + 1):
        window = decoded(tokenizer, ids[start:stop])
        length = _common_prefix(window, text, origin)
        done = max(done, origin + length)
        places.append(done)
        if length < len(window) or origin + length < done:
            continue  # part of a character, or text that later tokens change
        known = decoded(tokenizer, ids[behind:stop])
        at = done - len(known)
        if known and UNKNOWN not in known and at >= 0 and text.startswith(known, at):
            start, origin = behind, at
        behind = stop
    if places:
        places[-1] = len(text)  # also where the tokenizer cleans up text already decoded
    return places


def _common_prefix(window: str, text: str, origin: int) -> int:
    """How many characters of the window, from its beginning, equal the text from `origin` on."""
    if text.startswith(window, origin):
        return len(window)
    pairs = enumerate(zip(window, text[origin : origin + len(window)], strict=False))
    return next((n for n, (one, other) in pairs if one != other), len(text) - origin)
