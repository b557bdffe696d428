"""Contexts: what a language model continues, and the turns that it has drawn in them so far."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from groupwise.tool_call import ToolCall, assistant_message

Message = Mapping[str, Any]
Ended = Literal["stop", "length", "failed"]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Tokens after a prompt.

    ids: token ids. messages: the replies of tools or users that they render, with the end of the
        turn before and the beginning of the next one; () for a part of the assistant's turn.
    """

    ids: tuple[int, ...]
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Turn(Segment):
    """What the model drew in one go; each of its tokens is a decision.

    ids: with the end token or stop string. text: of the ids, without an end token.
    calls: of tools, in it; content: its text without those that have no fault, None for all of it.
    ended: "stop", by an end token or a stop string; "length", cut at the limit; "failed", since the
        next token's logits were not finite, or for the reason `failure`.
    log_probs: the sampler's, one for each id; empty where it states none.
    sampled_mass, entropy: means over the ids, as the policy's facts; NaN where unknown.
    spans: where the sampler is not the policy, the versions of the weights that drew the ids, and
        how many each, in order.
    """

    text: str
    ended: Ended
    calls: tuple[ToolCall, ...] = ()
    content: str | None = None
    log_probs: tuple[float, ...] = ()
    sampled_mass: float = math.nan
    entropy: float = math.nan
    spans: tuple[tuple[int, int], ...] = ()
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """A prompt, and the segments after it.

    prompt: a text, or chat messages; tools: the JSON schemas of functions that the template shows.
    prompt_ids: [t] int64.
    segments: turns and what the model did not draw, in order; a turn may follow another one.
    completion: of chat messages those after the prompt: the assistant's turns and the replies.
    pictures: of prompt and replies, in order, as the codec has prepared them.
    ended: why nothing was drawn after the last turn: its own `ended`, unless whoever plays the
        episode sets a reason of their own; None if nothing is drawn yet.
    """

    prompt: str | Sequence[Message]
    prompt_ids: Tensor
    tools: Sequence[Mapping[str, Any]] | None = None
    segments: tuple[Segment, ...] = ()
    completion: tuple[Message, ...] = ()
    pictures: tuple[Any, ...] = ()
    ended: str | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far; () for a prompt that is a text."""
        return () if isinstance(self.prompt, str) else (*self.prompt, *self.completion)

    @property
    def completion_ids(self) -> list[int]:
        """The ids of all segments."""
        return [token for segment in self.segments for token in segment.ids]

    @property
    def decisions(self) -> list[bool]:
        """For each of `completion_ids` whether the model drew it."""
        return [isinstance(segment, Turn) for segment in self.segments for _ in segment.ids]

    @property
    def ids(self) -> Tensor:
        """[t] int64 of the prompt and all segments."""
        if not self.segments:
            return self.prompt_ids
        return torch.cat([self.prompt_ids, torch.tensor(self.completion_ids, dtype=torch.int64)])

    @property
    def drawn(self) -> int:
        """The number of `ids` up to the last one that was drawn, 0 without any."""
        ends = [
            end
            for segment, end in zip(self.segments, self._ends, strict=True)
            if isinstance(segment, Turn)
        ]
        return len(self.prompt_ids) + ends[-1] if ends else 0

    @property
    def _ends(self) -> list[int]:
        return [*accumulate(len(segment.ids) for segment in self.segments)]

    @property
    def turns(self) -> list[Turn]:
        return [segment for segment in self.segments if isinstance(segment, Turn)]

    def with_turn(self, turn: Turn) -> "Context":
        """The context after this turn."""
        text = turn.text if turn.content is None else turn.content
        return self._with(turn, assistant_message(text, turn.calls), ended=turn.ended)

    def with_text(self, text: str, ids: Sequence[int]) -> "Context":
        """The context after a bare text, which stands in the assistant's turn."""
        return self._with(Segment(ids=tuple(ids)), assistant_message(text), ended=None)

    def with_replies(self, messages: Sequence[Message], ids: Sequence[int]) -> "Context":
        """The context after replies of tools or users."""
        return replace(
            self,
            segments=(*self.segments, Segment(ids=tuple(ids), messages=tuple(messages))),
            completion=(*self.completion, *messages),
            ended=None,
        )

    def _with(self, segment: Segment, message: dict[str, Any], ended: str | None) -> "Context":
        """The context with a segment of the assistant's turn, which it may begin."""
        completion = self.completion
        if not isinstance(self.prompt, str):
            if self.segments and not is_reply(self.segments[-1]):
                *before, begun = completion
                message["content"] = begun["content"] + message["content"]
                calls = [*begun.get("tool_calls", ()), *message.get("tool_calls", ())]
                message |= {"tool_calls": calls} if calls else {}
                completion = tuple(before)
            completion = (*completion, message)
        segments = (*self.segments, segment)
        return replace(self, segments=segments, completion=completion, ended=ended)


def is_reply(segment: Segment) -> bool:
    """Whether a segment ends the assistant's turn before it."""
    return bool(segment.messages)
