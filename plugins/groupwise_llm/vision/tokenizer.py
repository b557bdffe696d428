"""PictureTokenizer: a tokenizer of texts in which pictures stand, to ids and back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from groupwise.kit.errors import UserError
from groupwise_llm.vision.family import Family
from groupwise_llm.vision.picture import BEYOND, ROOM, Picture
from groupwise_messages.escape import Escape


class PictureTokenizer:
    """The family's tokenizer, for which each placeholder of a text is a picture, within `showing`.

    In texts made of ids a picture is one image token. All else is the tokenizer's own.
    """

    def __init__(self, family: Family) -> None:
        self.family, self.tokenizer = family, family.processor.tokenizer
        self._pictures: Sequence[Picture] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    @contextmanager
    def showing(self, pictures: Sequence[Picture]) -> Iterator[None]:
        """The context in which these are the pictures of every text that has placeholders."""
        before, self._pictures = self._pictures, pictures
        try:
            yield
        finally:
            self._pictures = before

    @cached_property
    def bare(self) -> Escape:
        """What others wrote without tokens that stand for pictures or videos: `<image>` becomes
        `< image>`.

        All that a model reads passes here, but what the chat template itself writes.
        """
        tokens = self.tokenizer.convert_ids_to_tokens(sorted(self.family.excluded))
        return Escape({self.family.placeholder, *tokens})

    def __call__(self, texts: Sequence[str], **options: Any) -> dict[str, list[list[int]]]:
        """`input_ids` of each text."""
        ids = self.tokenizer([*map(self._expanded, texts)], **options)["input_ids"]
        return {"input_ids": [self._placed(own) for own in ids]}

    def _expanded(self, text: str) -> str:
        """The text with what the processor writes in the place of each picture."""
        if self._pictures is None:
            return text
        first, *rest = text.split(self.family.placeholder)
        if not rest:
            return text
        if len(rest) != len(self._pictures):
            raise left_out(len(rest), len(self._pictures))
        pairs = zip(self._pictures, rest, strict=True)
        return first + "".join(picture.text + after for picture, after in pairs)

    def _placed(self, ids: list[int]) -> list[int]:
        """Ids with those of the pictures' own tokens in the places of the image token."""
        count = ids.count(self.family.image_id)
        if self._pictures is None or not count:
            return ids
        own = [token for picture in self._pictures for token in picture.ids]
        if count != len(own):
            raise UserError(
                f"a text has {count} image tokens, and its pictures have {len(own)}: the model's "
                f"chat template makes some of what stands in messages; set another one "
                f"(policy.chat_template: {{chat_template: ...}})"
            )
        places = iter(own)
        return [next(places) if token == self.family.image_id else token for token in ids]

    def decode(self, ids: Any, **options: Any) -> str:
        tokens = ids.tolist() if hasattr(ids, "tolist") else ids
        if not isinstance(tokens, int) and any(token >= BEYOND for token in tokens):
            image = self.family.image_id
            shown = (image if token >= BEYOND else token for token in tokens if _begins(token))
            tokens = [*shown]
        text: str = self.tokenizer.decode(tokens, **options)
        return text

    # ---- the chat template: a processor may have one of its own

    @property
    def chat_template(self) -> Any:
        return getattr(self.family.processor, "chat_template", None) or self.tokenizer.chat_template

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        return self.tokenizer.apply_chat_template(
            messages, **{"chat_template": self.chat_template, **options}
        )


def _begins(token: int) -> bool:
    """Whether it is of text, or the first of a picture."""
    return token < BEYOND or (token - BEYOND) % ROOM == 0


def left_out(written: int, pictures: int) -> UserError:
    """Why messages with so many pictures cannot be read, of which a template writes so many."""
    fault = "show none in messages of their role"
    if written > pictures:
        fault = "make more of what stands in texts"
    return UserError(
        f"the model's chat template writes {written} of {pictures} pictures of these messages: it "
        f"may {fault}; set another one (policy.chat_template: {{chat_template: ...}})"
    )
