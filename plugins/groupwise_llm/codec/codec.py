"""Codec: rows of the dataset to contexts, and finished contexts to rollouts."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise import attachments
from groupwise.rollouts import Rollouts
from groupwise.rollouts import Turn as TurnOfRollout
from groupwise_llm.codec.calls.calls import Calls
from groupwise_llm.codec.characters import UNKNOWN
from groupwise_llm.codec.completions import Completions
from groupwise_llm.codec.contexts import Context, Message, Segment, Turn, is_reply
from groupwise_llm.codec.observations import Observations
from groupwise_llm.codec.prompts import Prompts, tools_of
from groupwise_llm.codec.suffixes import Suffixes
from groupwise_llm.settings import Settings
from groupwise_messages.texts import encodable

OBSERVED = "observation_log_probs"
"""The output of the policy for which `assemble` adds `observations` to the trajectory."""
NOT_FINITE = "the model's logits are not finite; a lower train.learning_rate may help"
"""Why a completion failed whose last turn did."""


class Codec:
    """Between what users write (rows, messages) and what a model reads and draws (token ids).

    ends: ids of the tokens that end a turn; positions: the model's context length.
    """

    Prompts: ClassVar[type[Prompts]] = Prompts

    def __init__(
        self, tokenizer: Any, settings: Settings, ends: Collection[int], *, positions: int | None
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.prompts = self.Prompts(tokenizer, settings, positions=positions)
        self.cutter, self.escape = self.prompts.cutter, self.prompts.template.escape
        self.suffixes = Suffixes(self.prompts.template, ends)
        self.completions = Completions(tokenizer, ends, keep_special=settings.keep_special_tokens)
        self.observations = Observations(self.suffixes)
        self.calls = Calls(self.prompts, self.completions, ends)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Context]:
        """The context of each row's prompt, with its column `tools`; the same object for a row that
        occurs several times."""
        contexts = {id(row): self._encode(row) for row in {id(row): row for row in rows}.values()}
        return [contexts[id(row)] for row in rows]

    def _encode(self, row: Mapping[str, Any]) -> Context:
        prompt, ids = row["prompt"], self.prompts.encode(row)
        if isinstance(prompt, str):
            return Context(prompt=prompt, prompt_ids=ids)
        return Context(prompt=tuple(prompt), prompt_ids=ids, tools=tools_of(row))

    def extend(self, context: Context, replies: str | Sequence[Message]) -> Context:
        """The context after replies to its last turn, ready for the next one.

        replies: messages of tools or users, put as the model's chat template puts them; or a text,
            appended as it is, after which the model goes on in the same turn. No token that the
            context has is changed.

        Raises ValueError for messages where no turn was drawn, or the prompt is a text; UserError
        where the template changes earlier turns (`Suffixes`).

        Replies for which there is no `room` are encoded only as far as shows that.
        """
        room = max(self.room(context), 0)
        if isinstance(replies, str):
            text = encodable(self.escape(self.cutter.beginning(replies, room)))
            (ids,) = self.tokenizer([text], add_special_tokens=False)["input_ids"]
            return context.with_text(replies, ids)
        if isinstance(context.prompt, str):
            raise ValueError("extend: a prompt that is a text is continued by a text, not messages")
        if not context.segments or is_reply(context.segments[-1]):
            raise ValueError(
                "extend: replies follow a turn, and none was drawn since the last ones"
            )
        last, calls = context.segments[-1].ids, context.completion[-1].get("tool_calls", ())
        ids = self.suffixes.after(last, self.cutter.messages(replies, room), context.tools, calls)
        return context.with_replies(replies, ids)

    def room(self, context: Context) -> int:
        """How many tokens may follow: `max_new_tokens`, less the completion's own so far."""
        return self.settings.max_new_tokens - len(context.completion_ids)

    def readable(self, ids: Sequence[int], pictures: Sequence[Any]) -> str:
        """What the model reads, for people: ids as text with all special tokens. pictures: of the
        context."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def shortened(self, content: Any, most: int) -> Any:
        """The beginning of a text that has more than `most` tokens, with a mark; else the text.

        Of the parts of a message one text, which says that there are pictures that the model
        cannot see.
        """
        if not isinstance(content, str):
            content = "\n".join(map(_said, content))
        text = encodable(self.escape(self.cutter.beginning(content, most)))
        if len(text.encode()) <= most:  # a token is at least one byte
            return text
        (ids,) = self.tokenizer([text], add_special_tokens=False)["input_ids"]
        if len(ids) <= most:
            return text
        beginning = self.tokenizer.decode(ids[:most]).rstrip(UNKNOWN)
        return f"{beginning} [... cut]"

    def assemble(
        self,
        rows: Sequence[Mapping[str, Any]],
        contexts: Sequence[Context],
        *,
        groups: Sequence[int] | None = None,
        requested: Collection[str] = (),
        device: torch.device | str = "cpu",
    ) -> Rollouts:
        """A rollout for each context, which is in the episode of the row at its place.

        groups: the number of each one's group; each is a group of its own if None. requested:
        optional facts, and outputs of the policy. For `trajectory` and facts see `LanguageModel`.
        `versions` are the oldest of each one's turns, None where turns state none; so are
        `sampler_log_probs`.
        """
        tokens = [context.completion_ids for context in contexts]
        mask = _padded([torch.tensor(context.decisions, dtype=torch.bool) for context in contexts])
        lengths = torch.tensor([len(ids) for ids in tokens])
        turns = [context.turns for context in contexts]
        failures = [_failure(of_row) for of_row in turns]
        completions = [self.completions.of(context) for context in contexts]
        observations = {}
        if OBSERVED in requested:
            observed = [torch.tensor(self.observations.of(context)).bool() for context in contexts]
            observations = {"observations": _padded(observed).to(device)}
        return Rollouts(
            prompts=rows,
            completions=completions,
            groups=torch.tensor(range(len(rows)) if groups is None else groups).to(device),
            mask=mask.to(device),
            truncated=torch.tensor([context.ended == "length" for context in contexts]).to(device),
            sampler_log_probs=_log_probs(contexts, device),
            versions=_versions(turns),
            failures=failures if any(failures) else None,
            turns=[
                [TurnOfRollout(len(turn.ids), spans=turn.spans) for turn in of_row]
                for of_row in turns
            ],
            facts={
                "completion_ids": tokens,
                "thinking_prefix": self.prompts.thinking_prefixes(rows),
                **self.completions.optional_facts(requested, contexts, completions),
                "sampled_mass": [_mean(of_row, "sampled_mass") for of_row in turns],
                "entropy": [_mean(of_row, "entropy") for of_row in turns],
            },
            trajectory={
                "prompt_ids": [context.prompt_ids for context in contexts],
                "completion_ids": _padded([_int64(ids) for ids in tokens]).to(device),
                "attention": (torch.arange(mask.shape[1]) < lengths.unsqueeze(1)).to(device),
                **observations,
            },
        )

    def completions_and_facts(
        self,
        tokens: Sequence[Sequence[int]],
        rows: Sequence[Mapping[str, Any]],
        *,
        sampled: Sequence[Sequence[bool]] | None,
        requested: Collection[str],
    ) -> tuple[list[Any], dict[str, Sequence[Any]]]:
        """See `LanguageModel.completions_and_facts`."""
        masks = [[True] * len(ids) for ids in tokens] if sampled is None else sampled
        contexts = [self._written(*columns) for columns in zip(rows, tokens, masks, strict=True)]
        completions = [self.completions.of(context) for context in contexts]
        optional = self.completions.optional_facts(requested, contexts, completions)
        prefixes = self.prompts.thinking_prefixes(rows)
        return completions, {"completion_ids": tokens, "thinking_prefix": prefixes, **optional}

    def _written(
        self, row: Mapping[str, Any], ids: Sequence[int], sampled: Sequence[bool]
    ) -> Context:
        """A context without its prompt's ids; its completion is one turn of the assistant, in which
        others wrote, too."""
        text = self.completions.text(ids)
        segments: list[Segment] = []
        for drawn, group in groupby(zip(sampled, ids, strict=True), key=itemgetter(0)):
            tokens = tuple(token for _, token in group)
            written = text if len(tokens) == len(ids) else self.completions.text(tokens)
            segments.append(
                Turn(ids=tokens, text=written, ended="stop") if drawn else Segment(ids=tokens)
            )
        prompt = row["prompt"]
        return Context(
            prompt=prompt,
            prompt_ids=_int64([]),
            segments=tuple(segments),
            completion=() if isinstance(prompt, str) else ({"role": "assistant", "content": text},),
        )


def _said(part: Mapping[str, Any]) -> str:
    """A part of a message for a model that reads text alone."""
    if isinstance(part.get("text"), str):
        return part["text"]
    name = attachments.named(attachments.of_part(part))
    return f"[here is a picture that you cannot see: {name}]"


def _log_probs(contexts: Sequence[Context], device: torch.device | str) -> Tensor | None:
    """[B, T] of the turns' tokens, 0 elsewhere; None where a turn states none."""
    columns = []
    for context in contexts:
        column: list[float] = []
        for segment in context.segments:
            log_probs = (
                segment.log_probs if isinstance(segment, Turn) else (0.0,) * len(segment.ids)
            )
            if len(log_probs) < len(segment.ids):
                return None
            column += log_probs
        columns.append(torch.tensor(column, dtype=torch.float32))
    return _padded(columns).to(device)


def _failure(turns: Sequence[Turn]) -> str | None:
    """Why a rollout failed, None if it did not."""
    reasons = [turn.failure or NOT_FINITE for turn in turns if turn.ended == "failed"]
    return reasons[0] if reasons else None


def _versions(turns: Sequence[Sequence[Turn]]) -> Tensor | None:
    versions = [[version for turn in of_row for version, _ in turn.spans] for of_row in turns]
    if not all(versions):
        return None
    return torch.tensor([min(of_row) for of_row in versions], dtype=torch.int64)


def _mean(turns: Sequence[Turn], name: str) -> float:
    """The mean over all decisions, of each turn's mean over its own; 0 without any."""
    count = sum(len(turn.ids) for turn in turns)
    total = math.fsum(getattr(turn, name) * len(turn.ids) for turn in turns)
    return total / count if count else 0.0


def _int64(ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def _padded(columns: Sequence[Tensor]) -> Tensor:
    """[B, T] of B tensors, padded on the right with zeros."""
    return pad_sequence(list(columns), batch_first=True)
