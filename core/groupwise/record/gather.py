"""gather: batches of rollouts and of their scores from the record, and back."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise.environment import ENDED, OF_TURNS
from groupwise.record.call import Call
from groupwise.record.rollout import Rollout
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts, Turn

View = tuple[Rollouts, Scores]
"""Rollouts without trajectories, in CPU memory, and their scores."""
OF_EXCEPTIONS = ("environment", "refused")
"""The words for exceptions that `play` raises; its last completion may have been cut off."""


def write(batch: Rollouts, rollouts: Sequence[Rollout], *, trained: bool) -> None:
    """Write on each of these rollouts, in order, where it lies and what the sampler says of it.

    The batch is kept without completions and facts, so that each can be freed by itself; trained:
    whether a policy is trained on it, without which trajectories are dropped.
    """
    mask, truncated = batch.mask.cpu(), batch.truncated.tolist()
    nothing: list[None] = [None] * len(rollouts)
    failures, roles = batch.failures or nothing, batch.roles or nothing
    endings, turns = batch.endings or nothing, batch.turns or nothing
    drawn = replace(batch, completions=nothing, facts={}, failures=None)
    drawn = drawn if trained else replace(drawn, trajectory={})
    for at, rollout in enumerate(rollouts):
        rollout.batch, rollout.at, rollout.mask = drawn, at, mask[at]
        rollout.completion, rollout.truncated = batch.completions[at], truncated[at]
        rollout.facts = {name: column[at] for name, column in batch.facts.items()}
        rollout.failure, rollout.ended = failures[at], endings[at]
        rollout.role, rollout.turns = roles[at], turns[at]


def write_scores(scores: Scores, rollouts: Sequence[Rollout]) -> None:
    """Write on each of these rollouts, in order, its rewards."""
    nothing: list[None] = [None] * len(rollouts)
    values, failed = scores.values.tolist(), scores.failed.tolist()
    steps, reasons = nothing if scores.steps is None else scores.steps, scores.reasons or nothing
    for row, rollout in zip(range(len(values)), rollouts, strict=True):
        rollout.rewards, rollout.failed = values[row], failed[row]
        rollout.steps, rollout.reason = steps[row], reasons[row]
        rollout.extra = {name: column[row] for name, column in scores.extra.items()}


def gather(rollouts: Sequence[Rollout]) -> Rollouts:
    """These rollouts, in order, as a policy's passes need them.

    Facts that only some have are None for the others.
    """
    if not rollouts:
        return nothing_drawn()
    drawn = _drawn(rollouts)
    gathered = replace(drawn, **_columns(rollouts, drawn.groups.device))
    truncated = _truncated(rollouts)
    if truncated != [rollout.truncated for rollout in rollouts]:
        moved = torch.tensor(truncated, device=drawn.truncated.device)
        gathered = replace(gathered, truncated=moved)
    return gathered


def settle(rollouts: Sequence[Rollout], batch: Rollouts) -> None:
    """From now on these rollouts lie in this batch, which was gathered of them, so that the memory
    of what was drawn is freed."""
    for at, rollout in enumerate(rollouts):
        rollout.batch, rollout.at = batch, at


def moved(
    rollouts: Rollouts,
    device: torch.device,
    *,
    only: Collection[str] | None = None,
    copy: bool = False,
) -> Rollouts:
    """Rollouts on another device, without completions and facts.

    only: the columns that move, by name, if not all; copy: into memory that nothing else uses.
    """

    def on_device(name: str, column: Any) -> Any:
        if column is None or (only is not None and name not in only):
            return column
        if isinstance(column, Tensor):
            return column.to(device, copy=copy)
        # Rows may share a tensor, such as their prompt.
        each = {id(value): value.to(device, copy=copy) for value in column}
        return [each[id(value)] for value in column]

    names = ("groups", "mask", "truncated", "sampler_log_probs")
    return replace(
        rollouts,
        completions=[None] * len(rollouts),
        facts={},
        **{name: on_device(name, getattr(rollouts, name)) for name in names},
        trajectory={name: on_device(name, column) for name, column in rollouts.trajectory.items()},
    )


def on_accelerator(rollouts: Rollouts) -> frozenset[str]:
    """The names of the columns that `moved` moves and that do not lie in CPU memory."""
    columns = {
        "groups": rollouts.groups,
        "mask": rollouts.mask,
        "truncated": rollouts.truncated,
        "sampler_log_probs": rollouts.sampler_log_probs,
        **rollouts.trajectory,
    }
    return frozenset(
        name
        for name, column in columns.items()
        for value in ([column] if isinstance(column, Tensor) else column or ())
        if value.device.type != "cpu"
    )


def light(rollouts: Sequence[Rollout]) -> Rollouts:
    """The same without trajectories and the sampler's log-probs, in CPU memory."""
    if not rollouts:
        return nothing_drawn()
    masks = [rollout.mask for rollout in rollouts if rollout.mask is not None]
    assert len(masks) == len(rollouts)
    return Rollouts(
        mask=pad_sequence(masks, batch_first=True),
        truncated=torch.tensor(_truncated(rollouts)),
        versions=_versions(rollouts),
        **_columns(rollouts, torch.device("cpu")),
    )


def by_draw(rollouts: Sequence[Rollout]) -> Rollouts:
    """The same, where all rollouts of a draw are compared with each other."""
    draws = torch.tensor([rollout.draw for rollout in rollouts], dtype=torch.int64)
    return replace(light(rollouts), groups=draws)


def judged(calls: Sequence[Call], columns: Sequence[str]) -> Rollouts:
    """What rewards see: the rollouts of judged calls as completions of the data set's rows, with
    facts and the environment's columns; light.

    columns: the names of those that are always there; what is said of turns is among them only if
    it is named. Facts that not all players have are left out.
    """
    rollouts = by_draw([call.rollout for call in calls])
    by_player = {call.label: call.rollout.facts for call in calls}
    facts = rollouts.facts
    if len(by_player) > 1:
        common = set.intersection(*map(set, by_player.values()))
        facts = {name: facts[name] for name in sorted(common)}
    own = [call.columns or {} for call in calls]
    others = (name for each in own for name in each if name not in (ENDED, *OF_TURNS))
    names = dict.fromkeys([*columns, *others])
    returned = {name: [each.get(name) for each in own] for name in names}
    return replace(
        rollouts,
        prompts=[call.episode.group.row for call in calls],
        facts={**facts, **returned},
    )


def scores_of(rollouts: Sequence[Rollout], like: Scores) -> Scores:
    """The scores of these rollouts; like: scores of the same rewards in the same step."""
    values = [rollout.rewards for rollout in rollouts if rollout.rewards is not None]
    assert len(values) == len(rollouts)
    first = rollouts[0].extra if rollouts else ()
    logged = [name for name in first if all(name in rollout.extra for rollout in rollouts)]
    nothing = torch.empty(0, dtype=torch.float64)
    steps = [nothing if rollout.steps is None else rollout.steps for rollout in rollouts]
    padded = pad_sequence(steps or [nothing], batch_first=True, padding_value=math.nan)
    return replace(
        like.bare,
        values=torch.tensor(values, dtype=torch.float64).view(len(rollouts), len(like.names)),
        failed=torch.tensor([rollout.failed for rollout in rollouts], dtype=torch.bool),
        reasons=_some([rollout.reason for rollout in rollouts]),
        extra={name: [rollout.extra[name] for rollout in rollouts] for name in logged},
        steps=padded if any(rollout.steps is not None for rollout in rollouts) else None,
    )


def nothing_drawn() -> Rollouts:
    """An empty batch of rollouts."""
    return Rollouts(
        prompts=[],
        completions=[],
        groups=torch.empty(0, dtype=torch.int64),
        mask=torch.empty(0, 0, dtype=torch.bool),
        truncated=torch.empty(0, dtype=torch.bool),
    )


def _drawn(rollouts: Sequence[Rollout]) -> Rollouts:
    """The batches in which these rollouts lie as one, with these rows in order."""
    parts = list({id(rollout.batch): rollout.batch for rollout in rollouts}.values())
    batches = [part for part in parts if part is not None]
    drawn = batches[0] if len(batches) == 1 else Rollouts.concat(batches)
    starts, start = dict[int, int](), 0
    for part in batches:
        starts[id(part)], start = start, start + len(part)
    rows = [starts[id(rollout.batch)] + rollout.at for rollout in rollouts]
    return drawn if rows == [*range(len(drawn))] else drawn.select(rows)


def _columns(rollouts: Sequence[Rollout], device: torch.device) -> dict[str, Any]:
    """What is written on the rollouts, as columns of `Rollouts`."""
    names = dict.fromkeys(name for rollout in rollouts for name in rollout.facts)
    plain = rollouts[0].episode.plain
    endings = [rollout.ended for rollout in rollouts]
    return {
        "prompts": [rollout.row for rollout in rollouts],
        "completions": [rollout.completion for rollout in rollouts],
        "groups": torch.tensor([rollout.comparison.number for rollout in rollouts], device=device),
        "episodes": None if plain else torch.tensor([rollout.weighed_as for rollout in rollouts]),
        "failures": _some([rollout.failure for rollout in rollouts]),
        "endings": _some([None if word == "length" else word for word in endings]),
        "turns": _turns(rollouts),
        "roles": _some([rollout.role for rollout in rollouts]),
        "facts": {name: [rollout.facts.get(name) for rollout in rollouts] for name in names},
    }


def _some(values: Sequence[Any]) -> Sequence[Any] | None:
    return values if any(value is not None for value in values) else None


def _turns(rollouts: Sequence[Rollout]) -> Sequence[Sequence[Turn]] | None:
    if all(rollout.turns is None for rollout in rollouts):
        return None
    return [
        (Turn(rollout.length),) if rollout.turns is None else rollout.turns for rollout in rollouts
    ]


def _truncated(rollouts: Sequence[Rollout]) -> list[bool]:
    """Whether each was cut off: as the sampler says, unless the environment has a word for it."""
    return [
        rollout.truncated if rollout.ended in (None, *OF_EXCEPTIONS) else rollout.ended == "length"
        for rollout in rollouts
    ]


def _versions(rollouts: Sequence[Rollout]) -> torch.Tensor | None:
    known = [
        (rollout.batch.versions, rollout.at) for rollout in rollouts if rollout.batch is not None
    ]
    if any(versions is None for versions, _ in known):
        return None
    return torch.stack([versions[at] for versions, at in known if versions is not None])
