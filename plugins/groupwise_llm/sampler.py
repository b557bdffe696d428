"""TextSampler: samples turn by turn, as environments need it, in process or with an engine."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose, TurnSampler
from groupwise.tool_call import ToolCall
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Context, Message, Turn

LIKE_A_CALL = re.compile(
    r"<tool_call|<function[=_ ]|<invoke|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_call|```tool"
    r"|\"(arguments|parameters)\"\s*:"
)
"""What begins a call of a tool in one of the forms that models are trained on, or is in it."""


class TextSampler(TurnSampler):
    """Draws a language model's turns in contexts that go on after replies of tools and users.

        with sampler.session():
            contexts = sampler.encode(rows)
            turns = sampler.draw(contexts, seeds=seeds, limits=[64] * len(rows))
            contexts = [own.with_turn(turn) for own, turn in zip(contexts, turns)]
            contexts = [sampler.extend(own, replies_to(own)) for own in contexts]
            ...
        rollouts = sampler.assemble(rows, contexts)

    Contexts are data: they may wait, branch, and be drawn in any order and company.

    codec: of the policy; requested: the policy's optional facts that are requested; device: where
    rollouts are.
    """

    codec: Codec
    requested: frozenset[str]

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Context]:
        """The context of each row's prompt, a text or chat messages, with its column `tools`."""
        return self.codec.encode(rows)

    def extend(self, context: Context, replies: str | Sequence[Message]) -> Context:
        """The context after replies to its last turn; see `Codec.extend`."""
        return self.codec.extend(context, replies)

    def room(self, context: Context) -> int:
        """How many tokens may follow: `max_new_tokens`, less the completion's own so far."""
        return self.codec.room(context)

    def turn_notes(self) -> Sequence[str]:
        """Whether the chat template keeps earlier turns; see `Suffixes.notes`."""
        return self.codec.suffixes.notes()

    def check_tools(self) -> None:
        """See `Calls.check`."""
        self.codec.calls.check()

    def resembles_call(self, text: str) -> bool:
        return LIKE_A_CALL.search(text) is not None

    def shortened(self, content: Any, most: int) -> Any:
        return self.codec.shortened(content, most)

    def with_turn(self, context: Context, turn: Turn) -> Context:
        """The context after a turn that was drawn in it, with the calls that it has."""
        return context.with_turn(self.codec.calls.read(context, turn))

    def tool_calls(self, context: Context) -> tuple[Sequence[ToolCall], str | None]:
        last = context.turns[-1]
        return last.calls, last.content

    @abstractmethod
    def draw(
        self,
        contexts: Sequence[Context],
        *,
        seeds: Sequence[int],
        limits: Sequence[int],
        purpose: Purpose = "train",
        stop: Sequence[str] = (),
    ) -> list[Turn]:
        """The next turn in each context; equal contexts are computed once.

        seeds, limits: for each context its seed and the most tokens of the turn. stop: strings that
        end a turn, besides `policy.stop`. A turn depends on its context, seed and purpose, and is
        cut at its limit; other contexts do not change it, if the sampler is `seeded`.

        Raises ValueError for a limit below 1 or above the context's `room`.
        """

    def session(self) -> AbstractContextManager[None]:
        """The context of the draws of some episodes, in which weights neither change nor are
        exchanged.

        What was computed for a context is kept within it for its next turn, and dropped at its end;
        `draw` works outside, too, and then computes contexts as a whole. It contains a collective
        for a sharded policy.
        """
        return nullcontext()

    def assemble(
        self,
        rows: Sequence[Mapping[str, Any]],
        contexts: Sequence[Context],
        *,
        groups: Sequence[int] | None = None,
    ) -> Rollouts:
        """A rollout for each context, whose row is at its place in `rows`; see `Codec.assemble`."""
        return self.codec.assemble(
            rows, contexts, groups=groups, requested=self.requested, device=self.device
        )

    def holds(self, rollouts: Rollouts, turns: Sequence[Sequence[Turn]]) -> list[list[bool]]:
        """Whether the decisions of each rollout are, turn by turn, the ids of these turns, and no
        others."""
        ids, mask = rollouts.tensor("completion_ids").cpu(), rollouts.mask.cpu()
        held = []
        for row, own in enumerate(turns):
            decided, flags = ids[row][mask[row]].tolist(), []
            for turn in own:
                flags.append(tuple(decided[: len(turn.ids)]) == turn.ids)
                decided = decided[len(turn.ids) :]
            held.append(flags if not decided else [False] * len(own))
        return held

    def completions_and_facts(
        self,
        tokens: Sequence[Sequence[int]],
        rows: Sequence[Mapping[str, Any]],
        *,
        sampled: Sequence[Sequence[bool]] | None = None,
    ) -> tuple[list[Any], dict[str, Sequence[Any]]]:
        """Completions as rewards receive them (text or messages), and the facts about them.

        tokens: all of each completion, from any sampler; rows: of the dataset, one per completion;
        sampled: for each token whether the model sampled it, or a tool wrote it; all if None.
        """
        return self.codec.completions_and_facts(
            tokens, rows, sampled=sampled, requested=self.requested
        )

    def check_draw(self, contexts: Sequence[Context], limits: Sequence[int]) -> None:
        """Raise ValueError for a limit below 1 or above the context's room."""
        for context, limit in zip(contexts, limits, strict=True):
            room = self.room(context)
            if not 1 <= limit <= room:
                raise ValueError(f"draw: a limit of {limit} tokens, expected 1 to {room} (`room`)")
