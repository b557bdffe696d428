"""PictureCodec: rows and messages with pictures to contexts, and finished contexts to rollouts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise.rollouts import Rollouts
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Context, Message
from groupwise_llm.codec.prompts import Prompts
from groupwise_llm.codec.template import ChatTemplate
from groupwise_llm.settings import Settings
from groupwise_llm.vision.picture import BEYOND, Picture
from groupwise_llm.vision.reader import Read, Reader, Shown, is_block
from groupwise_llm.vision.tokenizer import PictureTokenizer, left_out


class PictureTemplate(ChatTemplate):
    """A chat template that writes the family's placeholder for each picture, and for nothing else:
    messages and tools are `bare`."""

    tokenizer: PictureTokenizer

    def render(self, messages: Any, tools: Sequence[Any] | None = None, **overrides: bool) -> str:
        return super().render(messages, self.tokenizer.bare(tools), **overrides)

    def for_template(self, message: dict[str, Any]) -> dict[str, Any]:
        return self.tokenizer.bare.message(message)


class PicturePrompts(Prompts):
    """Token ids of prompts with pictures."""

    Template: ClassVar[type[ChatTemplate]] = PictureTemplate
    batch: ClassVar[int] = 16  # rows with pictures are large
    tokenizer: PictureTokenizer
    reader: Reader

    def read(self, row: Mapping[str, Any], **options: bool) -> tuple[dict[str, Any], Read]:
        """A row whose prompt has a block for each of its pictures; and these. options: of
        `Reader.row`."""
        read = self.reader.row(row, **options)
        return {**row, "prompt": read.prompt}, read

    def _ids(self, prompts: Sequence[Any], texts: Sequence[str]) -> list[list[int]]:
        """As processors have it, what a chat template does not begin with the tokenizer adds, too:
        the template of LLaVA-NeXT has no beginning of a text."""
        word = ["word"]
        whole, bare = (
            self.tokenizer(word, add_special_tokens=special)["input_ids"][0]
            for special in (True, False)
        )
        first = whole[: len(whole) - len(bare) - self._added]
        begin = self.tokenizer.bos_token
        answers = []
        for prompt, text, own in zip(prompts, texts, super()._ids(prompts, texts), strict=True):
            complete = isinstance(prompt, str) or (begin and text.startswith(begin))
            answers.append(own if complete else [*first, *own])
        return answers

    def _text(self, row: Mapping[str, Any]) -> str:
        text = super()._text(row)
        if not isinstance(row["prompt"], str):
            return text
        mark = self.tokenizer.family.placeholder
        return mark.join(map(self.tokenizer.bare, text.split(mark)))

    def _needed(self, text: str) -> str:
        # With a part of the text the placeholders would be fewer than the pictures.
        return text if self.tokenizer.family.placeholder in text else super()._needed(text)

    def _unread(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return []

    def lengths(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        return [len(self._row_ids(row)) for row in rows]

    def _row_ids(self, row: Mapping[str, Any]) -> list[int]:
        row, read = self.read(row, blank=True)
        with self.tokenizer.showing(read.pictures):  # longer than their placeholders
            return super()._row_ids(row)


class PictureCodec(Codec):
    """Between what users write (rows, messages, pictures) and what a model reads and draws.

    reader: of the pictures.
    """

    Prompts: ClassVar[type[Prompts]] = PicturePrompts
    prompts: PicturePrompts
    tokenizer: PictureTokenizer

    def __init__(
        self, reader: Reader, settings: Settings, ends: Collection[int], *, positions: int | None
    ) -> None:
        super().__init__(PictureTokenizer(reader.family), settings, ends, positions=positions)
        self.reader = self.prompts.reader = reader

    def _encode(self, row: Mapping[str, Any]) -> Context:
        row, read = self.prompts.read(row)
        with self.tokenizer.showing(read.pictures):
            context = super()._encode(row)
        _check_written(context.prompt_ids.tolist(), read.pictures)
        return replace(context, pictures=tuple(read.pictures))

    def extend(self, context: Context, replies: str | Sequence[Message]) -> Context:
        if isinstance(replies, str):
            beginning = self.cutter.beginning(replies, max(self.room(context), 0))
            return super().extend(context, self.tokenizer.bare(beginning))
        read = self.reader.replies(self.cutter.messages(replies, max(self.room(context), 0)))
        with self.tokenizer.showing(read.pictures):
            longer = super().extend(context, read.prompt)
        _check_written(longer.segments[-1].ids, read.pictures)
        return replace(
            longer,
            pictures=(*context.pictures, *read.pictures),
            completion=(*context.completion, *replies),  # with their pictures, for rewards
        )

    def shortened(self, content: Any, most: int) -> Any:
        """Of the parts of a message those pictures that have at most `most` tokens together, and as
        much of the texts as fits beside them."""
        if isinstance(content, str):
            beginning = self.cutter.beginning(content, most)
            return super().shortened(self.tokenizer.bare(beginning), most)
        parts, left = [*content], most
        pictures = [n for n, part in enumerate(parts) if is_block(part)]
        for number in pictures:
            parts[number], count = self._seen(parts[number], left)
            left -= count
        for number in sorted({*range(len(parts))} - {*pictures}):
            text = self.shortened(str(parts[number].get("text", "")), max(left, 0))
            left -= len(self.tokenizer([text], add_special_tokens=False)["input_ids"][0])
            parts[number] = {"type": "text", "text": text}
        return parts

    def _seen(self, part: Mapping[str, Any], most: int) -> tuple[Mapping[str, Any], int]:
        """A picture and the number of its tokens, read only if it fits; words for one that cannot
        be shown."""
        message = {"role": "tool", "content": [part]}
        try:
            (blank,) = self.reader.replies([message], blank=True).pictures
            if len(blank) <= most:
                (picture,) = self.reader.replies([message]).pictures
                return Shown(part, picture), len(picture)
        except UserError:  # whose sentence may tell of the run's machine
            return {"type": "text", "text": "[a picture that cannot be shown]"}, 0
        text = f"[a picture of {len(blank)} tokens is left out: the most are {max(most, 0)}]"
        return {"type": "text", "text": text}, 0

    def readable(self, ids: Sequence[int], pictures: Sequence[Picture]) -> str:
        """With each picture in words, and the number of its tokens."""
        named = {
            own.first: f"[picture {own.image.width}x{own.image.height}: {len(own)} tokens]"
            for own in pictures
        }
        parts, run = list[str](), list[int]()
        for token in [*ids, BEYOND]:
            if token < BEYOND:
                run.append(token)
                continue
            parts.append(super().readable(run, ()) if run else "")
            parts.append(named.get(token, ""))
            run = []
        return "".join(parts)

    def assemble(
        self,
        rows: Sequence[Mapping[str, Any]],
        contexts: Sequence[Context],
        *,
        groups: Sequence[int] | None = None,
        requested: Collection[str] = (),
        device: torch.device | str = "cpu",
    ) -> Rollouts:
        """As `Codec.assemble`; `pictures` of the trajectory has those of each rollout, as
        `Album.packed` writes them."""
        rollouts = super().assemble(
            rows, contexts, groups=groups, requested=requested, device=device
        )
        packed: dict[tuple[int, ...], Tensor] = {}
        for context in contexts:  # the same tensor for all rollouts of a prompt
            firsts = tuple(picture.first for picture in context.pictures)
            if firsts not in packed:
                packed[firsts] = self.reader.album.packed(context.pictures)
        pictures = [packed[tuple(own.first for own in each.pictures)] for each in contexts]
        image = self.tokenizer.family.image_id
        tokens = [
            [image if token >= BEYOND else token for token in own]
            for own in rollouts.facts["completion_ids"]
        ]
        return replace(
            rollouts,
            facts={**rollouts.facts, "completion_ids": tokens},
            trajectory={**rollouts.trajectory, "pictures": pictures},
        )


def _check_written(ids: Sequence[int], pictures: Sequence[Picture]) -> None:
    """Raise UserError where the chat template has left out pictures."""
    written = sum(picture.first in ids for picture in pictures)
    if written < len(pictures):
        raise left_out(written, len(pictures))
