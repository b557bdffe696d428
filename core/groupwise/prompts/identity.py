"""Identity: which row a completion answers, for what a run remembers of its prompts."""

import hashlib

from groupwise.prompts.source import Row
from groupwise.prompts.split import as_text


def identity(row: Row) -> str:
    """A hash of all columns of a row: rows with one prompt and different gold answers differ.

    It is the same in all processes and in a resumed run, wherever the row is in its source.
    """
    text = as_text(dict(row))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
