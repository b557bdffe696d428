"""Characters: at which of a text each of its tokens ends."""

from collections.abc import Callable, Sequence

UNKNOWN = "\ufffd"
"""The character that bytes decode to where they are no complete character."""


def ends(decoded: Callable[[Sequence[int]], str], ids: Sequence[int], text: str) -> list[int]:
    """For each token of a completion, the number of characters of its text decoded up to it.

    decoded: from token ids to text; text: what all `ids` decode to. A character of several tokens
    (byte-level BPE) counts for the last of them; a special token that is not decoded adds nothing;
    the last entry is `len(text)`.

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
        window = decoded(ids[start:stop])
        length = common_prefix(window, text, origin)
        done = max(done, origin + length)
        places.append(done)
        if length < len(window) or origin + length < done:
            continue  # part of a character, or text that later tokens change
        known = decoded(ids[behind:stop])
        at = done - len(known)
        if known and UNKNOWN not in known and at >= 0 and text.startswith(known, at):
            start, origin = behind, at
        behind = stop
    if places:
        places[-1] = len(text)  # also where the tokenizer cleans up text already decoded
    return places


def common_prefix(one: str, other: str, origin: int = 0) -> int:
    """How many characters of `one`, from its beginning, equal `other` from `origin` on."""
    if other.startswith(one, origin):
        return len(one)
    pairs = enumerate(zip(one, other[origin : origin + len(one)], strict=False))
    return next((n for n, (ours, theirs) in pairs if ours != theirs), len(other) - origin)
