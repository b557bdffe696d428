"""Prompt: a context as a server reads it, with one placeholder for each picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.kit.errors import UserError
from groupwise_llm.codec.contexts import Context
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vision.family import Family
from groupwise_llm.vision.model import PicturedModel
from groupwise_llm.vision.picture import BEYOND


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """ids: token ids, with one placeholder for each picture. pictures: in their order, as data
    URLs. expanded: the ids with all tokens of the pictures, for each one the image token."""

    ids: Sequence[int]
    pictures: Sequence[str] = ()
    expanded: Sequence[int] = ()

    @property
    def body(self) -> dict[str, Any]:
        """The keys of a request. A server prepares pictures itself and puts their tokens in the
        places of the placeholders; then it is to say which tokens it has read."""
        body: dict[str, Any] = {"token_ids": list(self.ids)}
        if self.pictures:
            parts = [{"type": "image_url", "url": picture} for picture in self.pictures]
            body |= {"content_parts": parts, "return_token_ids": True}
        return body

    def check(self, read: Any, url: str) -> None:
        """Raise UserError where a server has read other tokens than the policy."""
        if not self.pictures or read == [*self.expanded]:
            return
        where = f"sampler: the vLLM server at {url}"
        if not isinstance(read, list):
            raise UserError(f"{where} does not say how it reads pictures; it needs vLLM 0.32")
        raise UserError(
            f"{where} reads a prompt of {len(self.pictures)} pictures as {len(read)} tokens, and "
            f"the policy as {len(self.expanded)}: it prepares pictures otherwise. Start it with "
            f"the policy's model, and with --mm-processor-kwargs for policy.max_pixels and "
            f"policy.min_pixels"
        )


def family_of(policy: LanguageModel) -> Family | None:
    """That of a policy that reads pictures."""
    return policy.causal.family if isinstance(policy.causal, PicturedModel) else None


def prompt_of(context: Context, family: Family | None) -> Prompt:
    """family: of the policy."""
    if family is None or not context.pictures:
        return Prompt(ids=context.ids.tolist())
    return _Writing(family).prompt(context)


class _Writing:
    """Writes contexts with pictures as vLLM expects them: of what a family's processor puts in the
    place of a picture's placeholder, the placeholder alone."""

    def __init__(self, family: Family) -> None:
        self.image_id, self._tokenizer = family.image_id, family.processor.tokenizer
        self._image_token = self._tokenizer.convert_ids_to_tokens(self.image_id)
        self._placeholder = self._ids(family.placeholder)

    def prompt(self, context: Context) -> Prompt:
        ids, written = context.ids.tolist(), list[int]()
        rest = ids
        for picture in context.pictures:
            start, last = rest.index(picture.ids[0]), rest.index(picture.ids[-1])
            head, *_, tail = picture.text.split(self._image_token)
            written += [*self._without_end(rest[:start], head), *self._placeholder]
            rest = self._without_beginning(rest[last + 1 :], tail)
        return Prompt(
            ids=[*written, *rest],
            pictures=[picture.url for picture in context.pictures],
            expanded=[self.image_id if token >= BEYOND else token for token in ids],
        )

    def _without_end(self, ids: list[int], text: str) -> list[int]:
        """Ids without the text at their end. Their tokenizer may have joined its beginning with
        what stands before (newlines)."""
        own = self._ids(text)
        if not own:
            return ids
        kept, first = ids[: -len(own)], self._tokenizer.decode(ids[-len(own)])
        return kept + self._ids(first.removesuffix(self._tokenizer.decode(own[0])))

    def _without_beginning(self, ids: list[int], text: str) -> list[int]:
        own = self._ids(text)
        if not own:
            return ids
        last = self._tokenizer.decode(ids[len(own) - 1])
        return self._ids(last.removeprefix(self._tokenizer.decode(own[-1]))) + ids[len(own) :]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
