"""Prompts: dataset rows to token ids, and checks of their length."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from textwrap import shorten
from typing import Any, ClassVar

import torch
from torch import Tensor

from groupwise import attachments
from groupwise.kit import foreign_json
from groupwise.kit.errors import UserError
from groupwise_llm.codec.characters import common_prefix
from groupwise_llm.codec.cutter import Cutter
from groupwise_llm.codec.template import FINISHED, ChatTemplate
from groupwise_llm.settings import Settings
from groupwise_messages.texts import encodable
from groupwise_messages.thinking import OPENING

MOST_NAMED = 5
"""Rows that a note names."""


class Prompts:
    """Token ids of prompts: plain text, or chat messages by the model's own chat template.

    positions: the model's context length, which prompt and completion share; None if unlimited.
    """

    Template: ClassVar[type[ChatTemplate]] = ChatTemplate
    batch: ClassVar[int] = 1024
    """Rows that are checked together."""

    def __init__(self, tokenizer: Any, settings: Settings, *, positions: int | None) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.positions = positions
        self.template = self.Template(tokenizer, settings)
        self._begin = tokenizer.bos_token, tokenizer.bos_token_id
        self.cutter = Cutter(tokenizer)
        self._added = added_after(tokenizer)
        room = None if positions is None else positions - settings.max_new_tokens
        if room is not None and room < 1:
            raise UserError(
                f"policy.max_new_tokens: {settings.max_new_tokens} leaves no room for a prompt: "
                f"{settings.model} has {positions} positions for prompt and completion; set fewer"
            )
        limits = [limit for limit in (room, settings.max_prompt_tokens) if limit is not None]
        self.limit = min(limits) if limits else None

    @property
    def longest(self) -> int | None:
        """Most tokens that a prompt and its completion may have together; None if unlimited."""
        return None if self.limit is None else self.limit + self.settings.max_new_tokens

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """[t] token ids; of a prompt that is too long the last `limit`, or a UserError
        (`policy.long_prompts`)."""
        text = self._text(row)
        needed = self._needed(text)
        (ids,) = self._ids([row["prompt"]], [needed])
        if not ids:
            raise UserError(f"a prompt has no tokens: {attachments.readable(row['prompt'])!r}")
        if self.limit is not None and len(ids) > self.limit:
            if self.settings.long_prompts != "cut":
                raise self._too_long(row, f"{'' if needed is text else 'at least '}{len(ids)}")
            ids = ids[-self.limit :]
        return torch.tensor(ids, dtype=torch.int64)

    def thinking_prefix(self, row: Mapping[str, Any]) -> str:
        """The thinking that the prompt has begun for the completion: the prompt's text from the
        opening tag on, "" if it opens none.

        Of messages that is the first tag in what the template adds for the assistant's turn, the
        difference of the prompts with and without it; a last message of the assistant belongs to
        this turn. A plain text must end with the tag: elsewhere it may only speak of it.
        """
        prompt = row["prompt"]
        text = self._text(row)
        if isinstance(prompt, str):
            tag = next((m for m in OPENING.finditer(text) if not text[m.end() :].strip()), None)
            return "" if tag is None else text[tag.start() :]
        if OPENING.search(text) is None:
            return ""
        before = prompt[:-1] if self.template.continues(prompt) else prompt
        rest = self._rendered(before, row, **FINISHED) if before else ""
        tag = OPENING.search(text, common_prefix(rest, text))
        return "" if tag is None else text[tag.start() :]

    def thinking_prefixes(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """`thinking_prefix` of each row; computed once for a row that occurs several times."""
        different = {id(row): row for row in rows}
        prefixes = {key: self.thinking_prefix(row) for key, row in different.items()}
        return [prefixes[id(row)] for row in rows]

    def too_long(self, row: Mapping[str, Any]) -> bool:
        return self.limit is not None and self.lengths([row])[0] > self.limit

    def skips(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is left out since its prompt is too long."""
        return self.settings.long_prompts == "skip" and self.too_long(row)

    def check(self, rows: Iterable[Mapping[str, Any]], vocabulary: int | None = None) -> list[str]:
        """Check the length and the tokens of all prompts; notes say how many are skipped or cut.

        vocabulary: how many tokens the model has embeddings for; None if unknown. Raises UserError
        for a prompt without tokens, or a long one with `long_prompts: error`, and for a token
        without an embedding, which would end the run when it is read.
        """
        rows, total, notes, long = iter(rows), 0, list[str](), list[str]()
        unknown = {} if vocabulary is None else self._unknown(vocabulary)
        while batch := list(islice(rows, self.batch)):
            total += len(batch)
            notes = notes or self._unread(batch)
            for row in batch if unknown else ():
                self._check_tokens(row, unknown)
            for row, length in zip(batch, self.lengths(batch), strict=True):
                if not length:
                    own = attachments.readable(row["prompt"])
                    raise UserError(f"a prompt has no tokens: {own!r}")
                if self.limit is None or length <= self.limit:
                    continue
                if self.settings.long_prompts == "error":
                    raise self._too_long(row, str(length))
                long.append(getattr(row, "place", ""))
        if not long:
            return notes
        action = "left out" if self.settings.long_prompts == "skip" else "cut to their last tokens"
        text = (
            f"{len(long)} of {total} prompts are longer than {self.limit} tokens and are {action}"
        )
        return [*notes, f"{text} (policy.long_prompts){_places(long)}"]

    def _unknown(self, vocabulary: int) -> dict[int, str]:
        """The tokenizer's tokens for which the model has no embedding, by id."""
        tokens = self.tokenizer.get_vocab().items()
        return {number: token for token, number in tokens if number >= vocabulary}

    def _check_tokens(self, row: Mapping[str, Any], unknown: Mapping[int, str]) -> None:
        number = next((each for each in self._row_ids(row) if each in unknown), None)
        if number is not None:
            raise UserError(
                f"{_place(row)}the prompt has the token {unknown[number]!r}, {number}, for which "
                f"{self.settings.model} has no embedding: its tokenizer has {len(unknown)} tokens "
                f"more than the model, and its own are below {min(unknown)}; expected a model "
                f"that was resized for its tokenizer (`resize_token_embeddings`), or prompts and "
                f"a chat template without this token"
            )

    def _unread(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """A note if rows have pictures in columns, which a policy of text does not read."""
        pictures = chain.from_iterable(map(attachments.in_columns, rows))
        if not any(map(attachments.is_held, pictures)):
            return []
        note = (
            "the rows have pictures (columns image or images), which this policy does not read: it "
            "sees the text alone; a policy vision_language_model reads them"
        )
        return [note]

    def lengths(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Tokens of each prompt; 1 for prompts so short that they surely fit, which saves time."""
        prompts = [row["prompt"] for row in rows]
        texts = [self._text(row) for row in rows]
        lengths = [1] * len(texts)
        counted = [number for number, text in enumerate(texts) if not self._short(text)]
        ids = self._ids([prompts[number] for number in counted], [texts[n] for n in counted])
        for number, own in zip(counted, ids, strict=True):
            lengths[number] = len(own)
        return lengths

    def _row_ids(self, row: Mapping[str, Any]) -> list[int]:
        """The token ids of a whole prompt."""
        (ids,) = self._ids([row["prompt"]], [self._text(row)])
        return ids

    def _short(self, text: str) -> bool:
        # A token is at least one byte; the factor allows for normalisation, which may lengthen a
        # text, and the 64 for special tokens.
        fits = self.limit is None or 2 * len(text.encode()) + 64 <= self.limit
        return fits and bool(text.strip())

    def _ids(self, prompts: Sequence[Any], texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt, by one tokenizer call for plain texts and one for chats.

        Without the tokens that the tokenizer adds after a text (`add_eos_token: true`): the model
        is to continue the prompt, and would see it as ended; and without a second token of the
        beginning, where a text that a chat template has written begins with one.
        """
        answers: list[list[int]] = [[] for _ in texts]
        # A chat template adds the special tokens itself.
        for special in (True, False):
            places = [n for n, prompt in enumerate(prompts) if isinstance(prompt, str) is special]
            if places:
                chosen = [texts[n] for n in places]
                ids = self.tokenizer(chosen, add_special_tokens=special)["input_ids"]
                for n, own in zip(places, ids, strict=True):
                    answers[n] = self._begun_once(own, texts[n]) if special else own
        return answers

    def _begun_once(self, ids: list[int], text: str) -> list[int]:
        begin, number = self._begin
        twice = bool(begin) and text.startswith(begin) and ids[:2] == [number, number]
        return ids[int(twice) : len(ids) - self._added]

    def _text(self, row: Mapping[str, Any]) -> str:
        prompt = row["prompt"]
        if isinstance(prompt, str):
            return encodable(prompt)
        return self._rendered(prompt, row)

    def _rendered(self, messages: Any, row: Mapping[str, Any], **options: bool) -> str:
        tools = self.template.escape(tools_of(row))
        return self.template.render(self.template.escaped(messages), tools, **options)

    def _needed(self, text: str) -> str:
        """What has to be read of a prompt's text: all of it, unless it is much too long."""
        if self.limit is None:
            return text
        if self.settings.long_prompts == "cut":
            return self.cutter.end(text, self.limit)
        return self.cutter.beginning(text, self.limit)

    def _too_long(self, row: Mapping[str, Any], length: str) -> UserError:
        settings = self.settings
        own = settings.max_prompt_tokens
        if own is not None and self.limit == own:
            limit = f"policy.max_prompt_tokens: {own}"
        else:
            limit = (
                f"the {self.limit} that max_new_tokens={settings.max_new_tokens} leaves of the "
                f"{self.positions} positions of {settings.model}"
            )
        return UserError(
            f"{_place(row)}a prompt of {length} tokens is longer than {limit}; leave such rows out "
            f"(policy.long_prompts: skip), keep their last tokens (policy.long_prompts: cut), or "
            f"set a smaller max_new_tokens or a larger max_prompt_tokens. It begins: "
            f"{str(attachments.readable(row['prompt']))[:120]!r}"
        )


def _place(row: Mapping[str, Any]) -> str:
    """Where a row is, as the beginning of a message; "" if that is not known."""
    return f"{row.place}: " if hasattr(row, "place") else ""


def _places(long: Sequence[str]) -> str:
    """The first of the rows that are too long, as the end of a sentence."""
    known = [*filter(None, long)]
    if not known:
        return ""
    more = ", ..." if len(known) > MOST_NAMED else ""
    return f": {', '.join(known[:MOST_NAMED])}{more}"


def tools_of(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The JSON schemas of functions in a row's column `tools`, a list or JSON of one, None without
    any; the template shows them to the model. Raises UserError for anything else."""
    tools = row.get("tools")
    if isinstance(tools, str):
        with suppress(ValueError):  # refused below
            tools = foreign_json.read(tools.strip() or "[]")
    if not tools:
        return None
    if not (isinstance(tools, Sequence) and all(isinstance(tool, Mapping) for tool in tools)):
        shown = shorten(repr(tools), 200, placeholder=" ...")
        raise UserError(
            f"the column tools must be a list of functions' JSON schemas, found {shown}; rename it "
            f"if it is something else"
        )
    return tools


def added_after(tokenizer: Any) -> int:
    """The number of tokens that the tokenizer adds after a text."""
    whole, bare = (
        tokenizer(["word"], add_special_tokens=special)["input_ids"][0] for special in (True, False)
    )
    counts = range(len(whole) - len(bare) + 1)
    return next((n for n in counts if whole[: len(whole) - n][-len(bare) :] == bare), 0)
