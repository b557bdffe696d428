"""Split: which questions are held out."""

import hashlib
import json
from typing import Any


def held_out(question: Any, fraction: float) -> bool:
    """Whether a question is held out; depends only on a hash of its text.

    So the split does not change with shuffling, appended rows or another seed, and rows that ask
    the same are on the same side.
    """
    text = question if isinstance(question, str) else as_text(question)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def as_text(value: Any) -> str:
    """A question as text, equal for equal questions."""
    return json.dumps(value, sort_keys=True, default=str)
