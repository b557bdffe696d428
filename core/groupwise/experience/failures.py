"""Failures: replies and episodes that rewards never see, in words."""

from collections.abc import Iterator, Sequence

from groupwise.config.learners import SOLE
from groupwise.record import Call, Episode, Group
from groupwise.scoring.reward_result import excerpt


def described(groups: Sequence[Group], labels: Sequence[str]) -> dict[str, str]:
    """By cause, the first completion of each player that failed, in one line, with its prompt.

    Causes are `/LABEL`, and `/` for the only player and for episodes without any reply.
    """
    sentences: dict[str, str] = {}
    lost = [episode for group in groups for episode in group.episodes if episode.is_lost]
    if lost:
        prompt = excerpt(lost[0].group.row.get("prompt"))
        sentences["/"] = f"an episode failed: {lost[0].failure}, at the prompt {prompt}"
    for label in labels:
        rollouts = (rollout for group in groups for rollout in group.rollouts(label))
        failed = next((rollout for rollout in rollouts if rollout.failure is not None), None)
        if failed is not None:
            which = "a completion" if label == SOLE else f"a completion of {label!r}"
            prompt = excerpt(failed.episode.group.row.get("prompt"))
            # A slash, since a reward may have the name of a policy.
            cause = "/" if label == SOLE else f"/{label}"
            sentences[cause] = f"{which} failed: {failed.failure}, at the prompt {prompt}"
    return sentences


def dead_ends(episodes: Sequence[Episode]) -> Iterator[Call]:
    """Calls that failed or whose reply was refused, not judged, and that nothing follows."""
    for call in (call for episode in episodes for call in episode.calls):
        ended = call.rollout.failure is not None or call.refused_by is not None
        if ended and call.columns is None and not call.is_followed:
            yield call
