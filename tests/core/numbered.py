"""Policies whose every decision has a number, so that what becomes of it can be seen from outside.

The text of a completion ends in the number of its first decision: replies, rows and what a sampler
was asked for are matched by it, and by nothing that the core keeps.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from groupwise import LogProbs, Policy, Rollouts
from groupwise.rollouts import Turn
from groupwise.sampler import GroupSampler, TurnSampler


@dataclass
class Record:
    """What the samplers of some policies were asked for.

    seeds, group_seeds: by the number of a completion's first decision; read: what a turn's context
    said; count: decisions so far.
    """

    seeds: dict[int, int] = field(default_factory=dict)
    group_seeds: dict[int, int] = field(default_factory=dict)
    read: dict[int, tuple[str, ...]] = field(default_factory=dict)
    count: int = 0


class Numbered(Policy):
    """Draws up to three of the symbols 0, 1 and 2, and ends at 0.

    trajectory: `symbols` and `numbers` [B, T], the number of each decision, -1 elsewhere. trained:
    the numbers of the decisions that the last `forward` was of, [b, t].
    """

    provides = frozenset({"log_probs"})
    LIMIT = 3

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.logits, self.record = nn.Parameter(torch.zeros(3, dtype=torch.float64)), record

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        self.trained = rollouts.tensor("numbers")[:, decisions]
        symbols = rollouts.tensor("symbols")[:, decisions]
        return LogProbs(log_probs=self.logits.log_softmax(-1)[symbols])

    def drawn(self, seed: int, limit: int = LIMIT) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The symbols of a completion, and their numbers."""
        generator = torch.Generator().manual_seed(seed)
        symbols = torch.randint(3, (limit,), generator=generator).tolist()
        symbols = symbols[: symbols.index(0) + 1] if 0 in symbols else symbols
        numbers = tuple(range(self.record.count, self.record.count + len(symbols)))
        self.record.count += len(symbols)
        self.record.seeds[numbers[0]] = seed
        return tuple(symbols), numbers


def written(symbols: Sequence[int], numbers: Sequence[int]) -> str:
    return f"{''.join(map(str, symbols))}#{numbers[0]};"


def number_of(text: str) -> int:
    """The number of the first decision of the last completion in a text."""
    return int(text.rpartition("#")[2].partition(";")[0])


def built(
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    symbols: Sequence[Sequence[int]],
    numbers: Sequence[Sequence[int]],
    groups: Sequence[int],
) -> Rollouts:
    """Rollouts of these symbols; a number of -1 is a hole."""
    own = nn.utils.rnn.pad_sequence([torch.tensor(own) for own in numbers], True, -1)
    return Rollouts(
        prompts=list(rows),
        completions=list(texts),
        groups=torch.tensor(groups),
        mask=own >= 0,
        truncated=torch.zeros(len(rows), dtype=torch.bool),
        trajectory={
            "symbols": nn.utils.rnn.pad_sequence([torch.tensor(own) for own in symbols], True),
            "numbers": own,
        },
    )


class Single(Numbered, GroupSampler):
    """Without turns; what the completions of a group share is drawn by its seed."""

    def sample(self, prompts, *, group_size, seeds, purpose="train", group_seeds=None):
        drawn = [self.drawn(seed) for seed in seeds]
        shared = seeds[::group_size] if group_seeds is None else group_seeds
        for at, (_, numbers) in enumerate(drawn):
            self.record.group_seeds[numbers[0]] = shared[at // group_size]
        return built(
            [row for row in prompts for _ in range(group_size)],
            [written(*each) for each in drawn],
            *zip(*drawn, strict=True),
            [at // group_size for at in range(len(drawn))],
        )


@dataclass(frozen=True)
class Context:
    """said: by others and by the policy, in order; turns: the decisions of each."""

    said: tuple[str, ...] = ()
    symbols: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    turns: tuple[int, ...] = ()


class Turns(Numbered, TurnSampler):
    """With turns, in contexts of messages or strings; what others say is one hole."""

    def sample(self, *args: Any, **options: Any) -> Rollouts:
        raise AssertionError("episodes of several turns are drawn turn by turn")

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Context]:
        names = [[tool["function"]["name"] for tool in row.get("tools") or ()] for row in rows]
        pairs = zip(rows, names, strict=True)
        return [Context(said=(*own, *said(row["prompt"]))) for row, own in pairs]

    def extend(self, context: Context, replies: Any) -> Context:
        return replace(
            context,
            said=context.said + said(replies),
            symbols=(*context.symbols, 0),
            numbers=(*context.numbers, -1),
        )

    def room(self, context: Context) -> int:
        return self.LIMIT

    def draw(self, contexts, *, seeds, limits, purpose="train"):
        turns = []
        for context, seed, limit in zip(contexts, seeds, limits, strict=True):
            symbols, numbers = self.drawn(seed, min(limit, self.LIMIT))
            self.record.read[numbers[0]] = context.said
            text = written(symbols, numbers)
            turns.append(SimpleNamespace(symbols=symbols, numbers=numbers, text=text, ended="stop"))
        return turns

    def with_turn(self, context: Context, turn: Any) -> Context:
        return Context(
            said=(*context.said, turn.text),
            symbols=context.symbols + turn.symbols,
            numbers=context.numbers + turn.numbers,
            texts=(*context.texts, turn.text),
            turns=(*context.turns, len(turn.symbols)),
        )

    @contextmanager
    def session(self) -> Iterator[None]:
        yield

    def assemble(self, rows, contexts, *, groups=None):
        rollouts = built(
            rows,
            ["".join(own.texts) for own in contexts],
            [own.symbols for own in contexts],
            [own.numbers for own in contexts],
            groups,
        )
        return replace(rollouts, turns=[[*map(Turn, own.turns)] for own in contexts])


def said(words: str | Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(each["content"] for each in words)


def numbers_in(rollouts: Rollouts) -> list[list[int]]:
    """The decisions of each rollout that are trained."""
    table = rollouts.tensor("numbers")
    return [own[here].tolist() for own, here in zip(table, rollouts.mask, strict=True)]
