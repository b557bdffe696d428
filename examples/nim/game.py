"""Nim with one heap: its moves, what is optimal, and the game as an environment.

Two sides take one to three stones in turns, and whoever takes the last one wins. A position is lost
for the side to move if each of its moves leaves the other side one that is not: those of 4, 8 and
12 stones.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from groupwise import Environment

WORDS = (
    *("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve"),
)
POSITIONS = range(1, len(WORDS))
"""The numbers of stones that games begin with."""
MOST = 3


def prompt(stones: int) -> str:
    return f"Stones left: {WORDS[stones]}"


def moves(stones: int) -> range:
    """How many may be taken."""
    return range(1, min(MOST, stones) + 1)


@cache
def is_lost(stones: int) -> bool:
    """Whether the side to move loses against a perfect one."""
    return not any(is_lost(stones - taken) for taken in moves(stones))


def is_optimal(stones: int, taken: int | None) -> bool:
    """Whether a move is legal and wins; in a lost position none does."""
    return taken is not None and taken in moves(stones) and is_lost(stones - taken)


class Positions(Sequence[Mapping[str, Any]]):
    """A row for each number of stones to begin with."""

    def __len__(self) -> int:
        return len(POSITIONS)

    def __getitem__(self, index: Any, /) -> Any:
        return {"prompt": prompt(POSITIONS[index]), "stones": POSITIONS[index]}


class Nim(Environment):
    """Two players in turns, or one that plays both sides. An answer that is not a legal move loses.

    Each move is a completion of its position alone, and has the outcome for its side as the reward.
    """

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return ["won", "optimal"]

    async def play(self, row: Mapping[str, Any], players: Mapping[str, Any]) -> Any:
        sides, stones, replies, optimal = [*players.values()], row["stones"], [], []
        is_legal = True
        while stones and is_legal:
            reply = await sides[len(replies) % len(sides)](prompt(stones))
            said = reply.text.strip()
            taken = next((own for own in moves(stones) if said == WORDS[own]), None)
            replies.append(reply)
            # In a lost position all moves are equally good.
            optimal.append(None if is_lost(stones) else float(is_optimal(stones, taken)))
            is_legal, stones = taken is not None, stones - (taken or 0)
        winner = (len(replies) - is_legal) % 2
        return [
            (reply, {"won": float(turn % 2 == winner), "optimal": optimal[turn]})
            for turn, reply in enumerate(replies)
        ]


def won(won: Sequence[float], **_: Any) -> list[float]:
    """1 for the moves of the side that wins the game, else 0."""
    return list(won)


def optimal(optimal: Sequence[float | None], **_: Any) -> list[float | None]:
    """1 for an optimal move, 0 for another one; None in a lost position, which has none."""
    return list(optimal)
