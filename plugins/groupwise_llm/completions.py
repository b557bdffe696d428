"""Completions: token ids to what rewards read, and where in the text each token ends."""

from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import Any

from groupwise_llm.characters import ends


class Completions:
    """The texts of completions, from whatever sampler.

    ends: ids of the tokens that end a completion. keep_special: whether texts contain tokens that
    the tokenizer marks as special. Those that open or close a part of the answer, such as gpt-oss's
    channels, are marked as well, and a reward that does not see them cannot tell thinking from the
    answer.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int], *, keep_special: bool) -> None:
        self.tokenizer, self.keep_special = tokenizer, keep_special
        self.closing = {*ends, tokenizer.pad_token_id}

    def text(self, ids: Sequence[int]) -> str:
        """What the tokens decode to, without end tokens and padding at the end."""
        return self._decoded(ids[: self._length(ids)])

    def character_ends(self, ids: Sequence[int], text: str) -> list[int]:
        """For each token the number of characters of its completion's `text` decoded up to it."""
        length = self._length(ids)
        return ends(self._decoded, ids[:length], text) + [len(text)] * (len(ids) - length)

    def optional_facts(
        self,
        requested: Collection[str],
        tokens: Sequence[Sequence[int]],
        texts: Sequence[str],
        *,
        sampled: Sequence[Sequence[bool]] | None = None,
    ) -> dict[str, Sequence[Any]]:
        """The policy's optional facts that are requested: `completion_mask`, `character_ends`.

        tokens, sampled: see `LanguageModel.completions_and_facts`; texts: of these tokens.
        """
        facts: dict[str, Sequence[Any]] = {}
        masks = [[True] * len(ids) for ids in tokens] if sampled is None else sampled
        if "completion_mask" in requested:
            facts["completion_mask"] = masks
        if "character_ends" in requested:
            facts["character_ends"] = [
                list(compress(self.character_ends(ids, text), mask))
                for ids, text, mask in zip(tokens, texts, masks, strict=True)
            ]
        return facts

    def _length(self, ids: Sequence[int]) -> int:
        """The number of tokens before end tokens and padding at the end."""
        return next((n for n in range(len(ids), 0, -1) if ids[n - 1] not in self.closing), 0)

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not self.keep_special)
        return text


def as_completion(text: str, row: Mapping[str, Any]) -> Any:
    """What rewards receive: text for a text prompt, a list of one message for a chat prompt."""
    return text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
