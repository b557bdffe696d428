"""Split: which questions are held out."""

import hashlib
import json
from typing import Any


def held_out(question: Any, fraction: float) -> bool:
    """Whether a question belongs to the held-out split: by a hash of its text, so by nothing else.

    The split survives shuffling, appending and other seeds; two rows of one question are on the
    same side.
    """
    text = question if isinstance(question, str) else as_text(question)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def as_text(value: Any) -> str:
    """A question as text that is equal where two are equal."""
    return json.dumps(value, sort_keys=True, default=str)
