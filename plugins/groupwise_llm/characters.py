"""Characters: which of a completion's text each of its tokens has written."""

from collections.abc import Sequence
from typing import Any

from groupwise_llm.prompts import written

UNKNOWN = "\ufffd"
"""What bytes are written as that are no character, or only a part of one."""


def ends(tokenizer: Any, ids: Sequence[int], text: str) -> list[int]:
    """For each token of a completion the number of characters of its text written by then.

    text: what the tokens decode to, special ones left out. A character of several tokens, as of
    byte-level BPE, is written by the last of them; a token that is left out writes nothing; the
    last entry is `len(text)`.

    The tokens up to one have written as much as they decode to the beginning of the text. They are
    not decoded from the first on, but from a few before: enough to have written something and to
    write it alike without those before them, for a tokenizer may write the first of a text
    otherwise. So the time is linear in the tokens.
    """
    places: list[int] = []
    start, origin = 0, 0  # ids[start:] are decoded, and begin at this character
    behind = 0  # ids[start:behind] are known to write text[origin:done]
    done = 0
    for stop in range(1, len(ids) + 1):
        window = written(tokenizer, ids[start:stop])
        written_now = _alike(window, text, origin)
        done = max(done, origin + written_now)
        places.append(done)
        if written_now < len(window) or origin + written_now < done:
            continue  # part of a character, or what later tokens change
        known = written(tokenizer, ids[behind:stop])
        at = done - len(known)
        if known and UNKNOWN not in known and at >= 0 and text.startswith(known, at):
            start, origin = behind, at
        behind = stop
    if places:
        places[-1] = len(text)  # where a tokenizer changes what it has written
    return places


def _alike(window: str, text: str, origin: int) -> int:
    """How many characters from the beginning of the window stand in the text from `origin` on."""
    if text.startswith(window, origin):
        return len(window)
    pairs = enumerate(zip(window, text[origin : origin + len(window)], strict=False))
    return next((n for n, (one, other) in pairs if one != other), len(text) - origin)
