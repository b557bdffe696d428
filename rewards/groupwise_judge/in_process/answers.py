"""Answers: the tokens that count as an answer of the judge, and what each is worth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Answers:
    """ids: [n] int64, tokens that are answers; values: [n] float32, what each is worth.

    words: by answer the tokens that count as it, as they are written, for messages.
    """

    ids: Tensor
    values: Tensor
    words: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, values: Mapping[str, float], tokenizer: Any) -> "Answers":
        """The answers as tokens: all that read as a word. Raises ValueError where none does."""
        tokens = list(range(len(tokenizer)))
        texts = tokenizer.batch_decode([[token] for token in tokens])
        by_word: dict[str, list[int]] = {reading(word): [] for word in values}
        for token, text in zip(tokens, texts, strict=True):
            if (word := reading(text)) in by_word:
                by_word[word].append(token)
        for word in values:
            if not by_word[reading(word)]:
                raise ValueError(_not_a_token(word, tokenizer))
        ids = {word: by_word[reading(word)] for word in values}
        return cls(
            ids=torch.tensor([token for word in ids for token in ids[word]]),
            values=torch.tensor([values[word] for word in ids for _ in ids[word]]),
            words={word: tuple(texts[token] for token in ids[word]) for word in ids},
        )

    def expected(self, log_probs: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor]:
        """The expected value [b] of the answer, and the probability [b] that there is one.

        log_probs: [b, n], of these tokens among all tokens. normalize: divide by the probability of
        an answer, so that the value is a mean of `values`.
        """
        probabilities = log_probs.exp()
        answered = probabilities.sum(dim=1)
        if normalize:  # by softmax: the probabilities themselves may all be 0 in float32
            probabilities = log_probs.softmax(dim=1)
        return (probabilities * self.values).sum(dim=1), answered


def reading(text: str) -> str:
    """What a text says as an answer: "Yes", " Yes" and "yes" say the same, but not "A" and "a"."""
    word = text.strip()
    return word if len(word) == 1 else word.casefold()


def _not_a_token(word: str, tokenizer: Any) -> str:
    pieces = tokenizer.batch_decode(
        [[token] for token in tokenizer(word, add_special_tokens=False)["input_ids"]]
    )
    listed = ", ".join(map(repr, pieces))
    return (
        f"`answers`: {word!r} is not one token of the judge, which writes it as {listed}; only the "
        f"first token of its reply is read, so choose answers that are one token each"
    )
