"""gather: batches of rollouts and scores from calls."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise.environment import ENDED, OF_TURNS
from groupwise.record.call import Call
from groupwise.record.seeds import seed_for
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts, Turn

OF_EXCEPTIONS = ("environment", "refused")
"""The words for exceptions that `play` raises; its last completion may have been cut off."""


def write(rollouts: Rollouts, firsts: Sequence[Call], *, trained: bool) -> None:
    """Write on the first call of each of these rollouts, in order, where it lies and what the
    sampler says of it.

    The batch is kept without completions and facts, so that each can be freed by itself; trained:
    whether a policy is trained on it, without which trajectories are dropped.
    """
    mask, truncated = rollouts.mask.cpu(), rollouts.truncated.tolist()
    nothing: list[None] = [None] * len(firsts)
    failures, roles = rollouts.failures or nothing, rollouts.roles or nothing
    endings, turns = rollouts.endings or nothing, rollouts.turns or nothing
    drawn = replace(rollouts, completions=nothing, facts={}, failures=None)
    drawn = drawn if trained else replace(drawn, trajectory={})
    for at, call in enumerate(firsts):
        call.rollouts, call.at, call.mask = drawn, at, mask[at]
        call.completion, call.truncated = rollouts.completions[at], truncated[at]
        call.facts = {name: column[at] for name, column in rollouts.facts.items()}
        call.failure, call.ended = failures[at], endings[at]
        call.role, call.turns = roles[at], turns[at]


def gather(firsts: Sequence[Call]) -> Rollouts:
    """The rollouts that begin with these calls, in order, as a policy's passes need them.

    Facts that only some have are None for the others.
    """
    if not firsts:
        return nothing_drawn()
    rollouts = _drawn(firsts)
    gathered = replace(rollouts, **_columns(firsts, rollouts.groups.device))
    truncated = _truncated(firsts)
    if truncated != [call.truncated for call in firsts]:
        moved = torch.tensor(truncated, device=rollouts.truncated.device)
        gathered = replace(gathered, truncated=moved)
    return gathered


def settle(firsts: Sequence[Call], rollouts: Rollouts) -> None:
    """From now on the completions of these calls lie in this batch, which was gathered of them, so
    that the memory of what was drawn is freed."""
    for at, call in enumerate(firsts):
        call.rollouts, call.at = rollouts, at


def moved(rollouts: Rollouts, device: torch.device) -> Rollouts:
    """Rollouts on another device, without completions and facts."""

    def on_device(column: Any) -> Any:
        if isinstance(column, Tensor):
            return column.to(device)
        return [value.to(device) for value in column]

    sampled = rollouts.sampler_log_probs
    return replace(
        rollouts,
        completions=[None] * len(rollouts),
        facts={},
        groups=rollouts.groups.to(device),
        mask=rollouts.mask.to(device),
        truncated=rollouts.truncated.to(device),
        sampler_log_probs=None if sampled is None else sampled.to(device),
        trajectory={name: on_device(column) for name, column in rollouts.trajectory.items()},
    )


def light(firsts: Sequence[Call]) -> Rollouts:
    """The same without trajectories and the sampler's log-probs, in CPU memory."""
    if not firsts:
        return nothing_drawn()
    masks = [call.mask for call in firsts if call.mask is not None]
    assert len(masks) == len(firsts)
    return Rollouts(
        mask=pad_sequence(masks, batch_first=True),
        truncated=torch.tensor(_truncated(firsts)),
        versions=_versions(firsts),
        **_columns(firsts, torch.device("cpu")),
    )


def by_draw(firsts: Sequence[Call]) -> Rollouts:
    """The same, where all rollouts of a draw are compared with each other."""
    numbers = [first.episode.group.number for first in firsts]
    return replace(light(firsts), groups=torch.tensor(numbers, dtype=torch.int64))


def judged(calls: Sequence[Call], columns: Sequence[str]) -> Rollouts:
    """What rewards see: the rollouts of judged calls as completions of the data set's rows, with
    facts and the environment's columns; light.

    columns: the names of those that are always there; what is said of turns is among them only if
    it is named. Facts that not all players have are left out.
    """
    rollouts = by_draw([call.first for call in calls])
    by_player = {call.label: call.first.facts for call in calls}
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


def scores_of(firsts: Sequence[Call], like: Scores) -> Scores:
    """The scores of these calls; like: scores of the same rewards in the same step."""
    scores = [call.score for call in firsts if call.score is not None]
    assert len(scores) == len(firsts)
    return like.with_rows(scores)


def nothing_drawn() -> Rollouts:
    """An empty batch of rollouts."""
    return Rollouts(
        prompts=[],
        completions=[],
        groups=torch.empty(0, dtype=torch.int64),
        mask=torch.empty(0, 0, dtype=torch.bool),
        truncated=torch.empty(0, dtype=torch.bool),
    )


def _drawn(firsts: Sequence[Call]) -> Rollouts:
    """The drawn batches of these calls as one, with these rows in order."""
    parts = list({id(call.rollouts): call.rollouts for call in firsts}.values())
    batches = [part for part in parts if part is not None]
    rollouts = batches[0] if len(batches) == 1 else Rollouts.concat(batches)
    starts, start = dict[int, int](), 0
    for part in batches:
        starts[id(part)], start = start, start + len(part)
    rows = [starts[id(call.rollouts)] + call.at for call in firsts]
    return rollouts if rows == [*range(len(rollouts))] else rollouts.select(rows)


def _columns(firsts: Sequence[Call], device: torch.device) -> dict[str, Any]:
    """What is written on the calls, as columns of `Rollouts`."""
    names = dict.fromkeys(name for call in firsts for name in call.facts)
    plain = firsts[0].episode.plain
    endings = [call.ended for call in firsts]
    return {
        "prompts": [call.row for call in firsts],
        "completions": [call.completion for call in firsts],
        "groups": torch.tensor([c.comparison.number for c in firsts], device=device),
        "episodes": None if plain else torch.tensor([*map(_weighed_as, firsts)]),
        "failures": _some([call.failure for call in firsts]),
        "endings": _some([None if word == "length" else word for word in endings]),
        "turns": _turns(firsts),
        "roles": _some([call.role for call in firsts]),
        "facts": {name: [call.facts.get(name) for call in firsts] for name in names},
    }


def _weighed_as(first: Call) -> int:
    """The number of the episode that a rollout counts as."""
    own = first.weighed_as
    return seed_for(0, f"{own}", first.episode.group.number, first.episode.index)


def _some(values: Sequence[Any]) -> Sequence[Any] | None:
    return values if any(value is not None for value in values) else None


def _turns(firsts: Sequence[Call]) -> Sequence[Sequence[Turn]] | None:
    if all(call.turns is None for call in firsts):
        return None
    return [(Turn(call.length),) if call.turns is None else call.turns for call in firsts]


def _truncated(firsts: Sequence[Call]) -> list[bool]:
    """Whether each was cut off: as the sampler says, unless the environment has a word for it."""
    return [
        call.truncated if call.ended in (None, *OF_EXCEPTIONS) else call.ended == "length"
        for call in firsts
    ]


def _versions(firsts: Sequence[Call]) -> torch.Tensor | None:
    known = [(call.rollouts.versions, call.at) for call in firsts if call.rollouts is not None]
    if any(versions is None for versions, _ in known):
        return None
    return torch.stack([versions[at] for versions, at in known if versions is not None])
