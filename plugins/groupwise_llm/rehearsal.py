"""TextRehearsal: a language model without weights, whose turns are placeholders.

It reads prompts and answers by the model's own tokenizer and chat template, as a run does.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from groupwise.kit.errors import UserError
from groupwise.rehearsal import Rehearsal
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise_llm.codec.contexts import Context, Message, Turn
from groupwise_llm.preflight import MakeCodec, codec_of
from groupwise_llm.sampler import TextSampler
from groupwise_llm.settings import Settings

WRITTEN = "[what the model writes]"
ANSWER = "[what the tool answers]"


class TextRehearsal(TextSampler, Rehearsal):
    """Draws `WRITTEN` in every turn; transcripts are contexts as text, with all special tokens."""

    def __init__(self, settings: Settings, make_codec: MakeCodec) -> None:
        super().__init__()
        self.codec = codec_of(settings, make_codec)
        self.tokenizer, ends = self.codec.tokenizer, sorted(self.codec.suffixes.ends)
        self.end = ends[0] if self.tokenizer.eos_token_id is None else self.tokenizer.eos_token_id
        self.requested: frozenset[str] = frozenset()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def skips(self, row: Mapping[str, Any]) -> bool:
        return self.codec.prompts.skips(row)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Context]:
        with self._noting_faults():
            return super().encode(rows)

    def extend(self, context: Context, replies: str | Sequence[Message]) -> Context:
        with self._noting_faults():
            return super().extend(context, replies)

    def check_tools(self) -> None:
        with self._noting_faults():
            super().check_tools()

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        try:
            yield
        except UserError as fault:
            self.fault = fault
            raise

    def draw(
        self,
        contexts: Sequence[Context],
        *,
        seeds: Sequence[int],
        limits: Sequence[int],
        purpose: Purpose = "train",
        stop: Sequence[str] = (),
    ) -> list[Turn]:
        ids, text = [self.end], WRITTEN
        if self.says is not None:
            text = self.says
            ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.end]
        return [Turn(ids=tuple(ids), text=text, ended="stop") for _ in contexts]

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        rows = [row for row in prompts for _ in range(group_size)]
        contexts = self.encode(rows)
        turns = self.draw(contexts, seeds=seeds, limits=[1] * len(rows))
        finished = [own.with_turn(turn) for own, turn in zip(contexts, turns, strict=True)]
        owners = [number for number in range(len(prompts)) for _ in range(group_size)]
        self.transcripts += map(self.text, finished)
        return super().assemble(rows, finished, groups=owners)

    def assemble(
        self,
        rows: Sequence[Mapping[str, Any]],
        contexts: Sequence[Context],
        *,
        groups: Sequence[int] | None = None,
    ) -> Rollouts:
        """As `TextSampler.assemble`; where tools are shown, the transcript goes on with an
        answer."""
        self.transcripts += [self.text(self._answered(context)) for context in contexts]
        return super().assemble(rows, contexts, groups=groups)

    def _answered(self, context: Context) -> Context:
        """The context with an answer of its first tool after its last turn; as it is if the
        template takes none, since the environment may answer otherwise."""
        if not context.tools or not context.turns or context.ended is None:
            return context
        schema = context.tools[0]
        name = schema.get("function", schema).get("name", "tool")
        answer = {"role": "tool", "name": name, "content": ANSWER}
        try:
            return self.codec.extend(context, [answer])
        except UserError:
            return context

    def text(self, context: Context) -> str:
        """A context as the model reads it, with `WRITTEN` in the place of its turns."""
        parts = [self.codec.readable(context.prompt_ids.tolist(), context.pictures)]
        for segment in context.segments:
            written = WRITTEN if isinstance(segment, Turn) else ""
            parts.append(written + self.codec.readable(segment.ids, context.pictures))
        return "".join(parts)
