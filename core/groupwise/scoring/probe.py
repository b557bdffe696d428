"""Probe: one reward, called on completions that no model wrote."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from groupwise.prompt_source import PlacedRow, Row, is_chat
from groupwise.rewards import Reward
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise.tool_call import assistant_message


class Value(NamedTuple):
    """What a reward gives for one completion."""

    number: float
    """NaN where the reward does not apply, or failed."""
    error: str | None = None
    """Why it failed, a phrase to follow the reward's name."""


class Probe:
    """Calls a reward; where it fails, it calls it again on each completion alone.

    Raises UserError if the reward cannot be loaded, or be sent to a process of its own.
    """

    def __init__(self, reward: Reward) -> None:
        self._scorer = Scorer([replace(reward, on_error="skip")])
        if reward.members.load is not None:
            self._scorer.load()
        self._who = f"reward {reward.name!r} "

    def values(self, rows: Sequence[PlacedRow], texts: Sequence[str]) -> list[Value]:
        """What the reward gives for one completion of each row.

        Raises RewardError for a call that does not end within the reward's deadline.
        """
        if not rows:
            return []
        scores = self._scorer(completed(rows, texts))
        reasons = scores.reasons or [None] * len(rows)
        if len(rows) > 1 and any(reasons):
            alone = zip(rows, texts, strict=True)
            return [value for row, text in alone for value in self.values([row], [text])]
        numbers = scores.values[:, 0].tolist()
        return [
            Value(number, why and why.removeprefix(self._who).splitlines()[0])
            for number, why in zip(numbers, reasons, strict=True)
        ]

    def close(self) -> None:
        """End the reward's process and threads."""
        self._scorer.close()


def completed(rows: Sequence[PlacedRow], texts: Sequence[str]) -> Rollouts:
    """Rollouts of one completion for each row, without facts of a policy; after messages, a
    completion is a message."""
    return Rollouts(
        prompts=list(rows),
        completions=[_completion(row, text) for row, text in zip(rows, texts, strict=True)],
        groups=torch.arange(len(rows)),
        mask=torch.ones(len(rows), 1, dtype=torch.bool),
        truncated=torch.zeros(len(rows), dtype=torch.bool),
    )


def _completion(row: Row, text: str) -> Any:
    return [assistant_message(text)] if is_chat(row["prompt"]) else text
