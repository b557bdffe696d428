"""Split: which questions are held out."""

import hashlib
from typing import Any

from groupwise.prompts.identity import identity


def held_out(question: Any, fraction: float) -> bool:
    """Whether a question is held out; depends only on a hash of its content.

    So the split does not change with shuffling, appended rows or another seed, and rows that ask
    the same are on the same side.
    """
    text = question if isinstance(question, str) else identity(question)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64
