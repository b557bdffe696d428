"""Passages: a folder of texts that a model may search."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.errors import UserError
from groupwise.kit.options import PathOrName

_SUFFIXES = (".txt", ".md")
_LONGEST = 1_000  # characters of a query


class SearchConfig(BaseModel):
    """The options of a search over a folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: PathOrName = Field(description="with texts, .txt or .md, also in folders within it")
    results: int = Field(3, ge=1, description="the most passages that a search returns")
    words: int = Field(
        100, ge=1, description="the most words of a passage; it ends with a paragraph where it can"
    )


class Passages:
    """The passages of a folder's texts, which `search` finds by BM25 (Robertson and others, 1994),
    in Lucene's form: of the words of a query, the rarer count more.

    Raises UserError for a folder without texts, or with one that is not in UTF-8.
    """

    def __init__(self, config: SearchConfig) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise UserError("search needs an extra: pip install 'groupwise[search]'") from error
        self.config = config
        self.passages = [*_passages(Path(config.folder), config.words)]
        if not self.passages:
            raise UserError(
                f"search: expected texts, {' or '.join(_SUFFIXES)}, in {config.folder!r}, "
                f"found none"
            )
        self._index = bm25s.BM25()
        self._index.index(_words([f"{name} {text}" for name, text in self.passages]), **_QUIET)

    def search(self, query: str) -> str:
        """Search a collection of texts. Returns the passages that fit best, with their titles.

        Args:
            query: the words to search for
        """
        (words,) = _words([query[:_LONGEST] or " "])
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return "nothing was found"
        scores = self._index.get_scores(known)
        best = np.argsort(-scores, kind="stable")[: self.config.results]  # ties in their order
        matching = [self.passages[place] for place in best if scores[place] > 0]
        return "\n\n".join(
            f"({n}) {name}: {text}" for n, (name, text) in enumerate(matching, start=1)
        )


_QUIET: dict[str, Any] = {"show_progress": False}


def _words(texts: list[str]) -> list[list[str]]:
    import bm25s

    words: list[list[str]] = bm25s.tokenize(texts, stopwords=None, return_ids=False, **_QUIET)
    return words or [[]]


def _passages(folder: Path, words: int) -> Iterator[tuple[str, str]]:
    """The title and the text of each passage, in the order of the files' names."""
    for path in sorted(folder.rglob("*")):
        if path.suffix not in _SUFFIXES or not path.is_file():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"search: expected UTF-8 in {path}, found other bytes") from error
        title = path.relative_to(folder).with_suffix("").as_posix()
        for passage in _parts(text, words):
            yield title, passage


def _parts(text: str, most: int) -> Iterator[str]:
    """Paragraphs side by side, up to so many words; longer ones in parts."""
    current: list[str] = []
    for paragraph in text.split("\n\n"):
        words = paragraph.split()
        if current and len(current) + len(words) > most:
            yield " ".join(current)
            current = []
        current += words
        while len(current) > most:
            yield " ".join(current[:most])
            current = current[most:]
    if current:
        yield " ".join(current)
