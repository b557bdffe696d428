"""Rollouts as the calls of groups, and back."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from groupwise import Rollouts
from groupwise.episodes.calls import calls_for
from groupwise.experience.credit import credit
from groupwise.record import Call, Episode, Group, Rollout
from groupwise.record.gather import gather, scores_of, write, write_scores
from groupwise.rewards import Scores


def trained(step: Any, label: str = "policy") -> Rollouts:
    """The rollouts of a step that a learner is trained on, also those that failed."""
    return gather(step.rollouts_of(label))


def score(episodes: Any, scores: Scores) -> dict[str, Scores]:
    """By player, the scores of its rollouts; scores: of the judged ones."""
    write_scores(scores, [call.rollout for call in episodes.judged_calls])
    credit(episodes.groups, scores, dict.fromkeys(episodes.labels, 0.0))
    return {label: scores_of(episodes.rollouts_of(label), scores) for label in episodes.labels}


def episode_of(group: Group, cast: Sequence[str], *, size: int, plain: bool) -> Episode:
    """A further episode of a group, whose players may all begin."""
    episode = Episode(
        group=group,
        place=0,
        index=len(group.episodes),
        size=size,
        cast=cast,
        seed=0,
        plain=plain,
        compared=False,
        receivers=cast,
    )
    group.episodes.append(episode)
    return episode


def recorded(rollouts: Rollouts, scores: Scores) -> list[Rollout]:
    """Rollouts as those of groups, with their scores."""
    groups = {n: Group(n, {}) for n in rollouts.groups.tolist()}
    own = []
    for number, row in zip(rollouts.groups.tolist(), rollouts.prompts, strict=True):
        group = groups[number]
        group.row = row
        episode_of(group, ("policy",), size=8, plain=True)
        (call,) = calls_for(group.episodes[-1], "policy", row, None, grouped=None)
        own.append(call.rollout)
    write(rollouts, own, trained=True)
    write_scores(scores, own)
    return own


def fill(replay: Any, rollouts: Rollouts, scores: Scores, step: int) -> Any:
    """What `Replay.fill` makes of rollouts and their scores."""
    filled, metrics = replay.fill(
        recorded(rollouts, scores), scores, step, rollouts.trajectory.keys()
    )
    return SimpleNamespace(
        rollouts=gather(filled),
        scores=scores_of(filled, scores),
        replayed=torch.tensor([own.is_replayed for own in filled]),
        metrics=metrics,
    )


def credited(
    scores: Scores,
    parents: list[int],
    *,
    failed: list[bool] | None = None,
    refused: list[bool] | None = None,
    value: float = 0.0,
) -> Scores:
    """The scores of the completions that judged ones follow; parents: of the judged ones."""
    count = max(max(parents) + 1, len(failed or ()), len(refused or ()))
    group = Group(0, {})
    episode = episode_of(group, ("first", "second"), size=1, plain=False)

    def call(label: str, row: int, parent: Call | None = None) -> Call:
        (one,) = calls_for(episode, label, {}, parent, grouped=None)
        one.rollout.failure = "it failed" if parent is None and failed and failed[row] else None
        one.refused_by = "second" if parent is None and refused and refused[row] else None
        return one

    first = [call("first", row) for row in range(count)]
    episode.judged = [call("second", row, first[parent]) for row, parent in enumerate(parents)]
    for own in episode.judged:
        own.columns = {}
    write_scores(scores, [own.rollout for own in episode.judged])
    episode.calls = [*first, *episode.judged]
    credit([group], scores, {"first": value})
    return scores_of([own.rollout for own in first], scores)
