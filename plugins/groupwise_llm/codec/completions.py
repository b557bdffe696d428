"""Completions: token ids to what rewards read, and where in the text each token ends."""

from collections.abc import Collection, Sequence
from itertools import compress, groupby
from typing import Any

from groupwise_llm.codec.characters import ends
from groupwise_llm.codec.contexts import Context, Message, Segment, Turn, is_reply
from groupwise_messages.texts import text_of


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

    def raw(self, ids: Sequence[int], *, ends: bool = True) -> str:
        """What the tokens decode to, with all special ones; ends: also those at the end."""
        text: str = self.tokenizer.decode(ids if ends else ids[: self._length(ids)])
        return text

    def character_ends(self, ids: Sequence[int], text: str) -> list[int]:
        """For each token the number of characters of its completion's `text` decoded up to it."""
        length = self._length(ids)
        return ends(self._decoded, ids[:length], text) + [len(text)] * (len(ids) - length)

    def of(self, context: Context) -> Any:
        """The completion as rewards receive it: the text of all its tokens; of a chat the messages
        after the prompt, the assistant's and those of tools and users."""
        if isinstance(context.prompt, str):
            return self._text(context.segments)
        messages = [dict(message) for message in context.completion]
        number = 0
        for replies, group in groupby(context.segments, key=is_reply):
            segments = [*group]
            if not replies and len(segments) > 1 and not messages[number].get("tool_calls"):
                messages[number]["content"] = self._text(segments)
            number += sum(len(of_turn.messages) for of_turn in segments) if replies else 1
        return messages

    def _text(self, segments: Sequence[Segment]) -> str:
        if len(segments) == 1 and isinstance(segments[0], Turn):
            return segments[0].text
        return self.text([token for segment in segments for token in segment.ids])

    def optional_facts(
        self, requested: Collection[str], contexts: Sequence[Context], completions: Sequence[Any]
    ) -> dict[str, Sequence[Any]]:
        """The policy's optional facts that are requested: `completion_mask`, `character_ends`.

        completions: `of` each context.
        """
        facts: dict[str, Sequence[Any]] = {}
        if "completion_mask" in requested:
            facts["completion_mask"] = [context.decisions for context in contexts]
        if "character_ends" in requested:
            facts["character_ends"] = [
                self._ends_of_decisions(context, completion)
                for context, completion in zip(contexts, completions, strict=True)
            ]
        return facts

    def _ends_of_decisions(self, context: Context, completion: Any) -> list[int]:
        """For each decision the number of characters of the completion up to it; of messages, in
        their contents one after the other."""
        text = isinstance(completion, str)
        contents = iter([completion] if text else map(content, completion))
        places: list[int] = []
        before = 0
        for replies, group in groupby(context.segments, key=is_reply):
            segments = [*group]
            if replies:
                before += sum(len(next(contents)) for of_turn in segments for _ in of_turn.messages)
                continue
            written = next(contents)
            ids = [token for segment in segments for token in segment.ids]
            drawn = [isinstance(segment, Turn) for segment in segments for _ in segment.ids]
            ends = compress(self.character_ends(ids, written), drawn)
            places += [before + end for end in ends]
            before += len(written)
        return places

    def _length(self, ids: Sequence[int]) -> int:
        """The number of tokens before end tokens and padding at the end."""
        return next((n for n in range(len(ids), 0, -1) if ids[n - 1] not in self.closing), 0)

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not self.keep_special)
        return text


def content(message: Message) -> str:
    """The text of a message; "" for one that only calls tools."""
    return text_of(message.get("content"))
