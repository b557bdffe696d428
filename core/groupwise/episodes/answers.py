"""Answers: what a sampler returned, against what it was asked for."""

from collections.abc import Sequence
from typing import Any

import torch

from groupwise.kit.copies import equal
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.rollouts import Rollouts


def check(name: str, rollouts: Any, rows: Sequence[Row], size: int) -> None:
    """Raise UserError unless there are `size` rollouts for each row; name: of the sampler."""
    if not isinstance(rollouts, Rollouts):
        raise UserError(f"{name} returned {type(rollouts).__name__}, not groupwise.Rollouts")
    if len(rollouts) != len(rows) * size:
        raise UserError(
            f"{name} returned {len(rollouts)} rollouts for {len(rows)} prompts with "
            f"group_size {size}: expected {len(rows) * size}"
        )


def check_answers(
    name: str, rollouts: Rollouts, rows: Sequence[Row], size: int, *, trained_on: bool
) -> None:
    """Raise UserError for rollouts in another order, or log-probs that are not finite."""
    numbers = torch.arange(len(rows)).repeat_interleave(size)
    due = [rows[number]["prompt"] for number in numbers.tolist()]
    answered = [row.get("prompt") for row in rollouts.prompts]
    if not equal(answered, due) or not torch.equal(rollouts.groups.cpu(), numbers):
        raise UserError(
            f"{name} returned rollouts in another order than the prompts: those of a "
            f"prompt must be adjacent, and `Rollouts.groups` must number the prompts 0, 1, ..."
        )
    log_probs = rollouts.sampler_log_probs
    if trained_on and log_probs is not None:
        mask = rollouts.mask.cpu() & ~rollouts.failed.unsqueeze(1)
        decisions = log_probs.cpu()[mask]
        bad = decisions[~decisions.isfinite()]
        if len(bad):
            raise UserError(
                f"{name}: sampler_log_probs of {len(bad)} of {len(decisions)} decisions "
                f"are not finite, the first is {float(bad[0])}"
            )
