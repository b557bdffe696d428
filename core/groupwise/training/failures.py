"""Failures: replies and episodes that rewards never see, in words."""

from collections.abc import Iterator, Sequence

from groupwise.config.learners import SOLE
from groupwise.errors import UserError
from groupwise.record import Call, Episode, Group
from groupwise.scoring.reward_result import excerpt


def described(groups: Sequence[Group], labels: Sequence[str]) -> dict[str, str]:
    """By cause, the first completion of each player that failed, in one line, with its prompt.

    Causes are `/LABEL`, and `/` for the only player and for episodes without any reply.
    """
    sentences, lost = (
        {},
        [episode for group in groups for episode in group.episodes if episode.is_lost],
    )
    if lost:
        prompt = excerpt(lost[0].group.row.get("prompt"))
        sentences["/"] = f"an episode failed: {lost[0].failure}, at the prompt {prompt}"
    for label in labels:
        firsts = (first for group in groups for first in group.rollouts(label))
        failed = next((first for first in firsts if first.failure is not None), None)
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
        ended = call.failure is not None or call.refused_by is not None
        if ended and call.columns is None and not call.is_followed:
            yield call


def check_not_empty(groups: Sequence[Group], labels: Sequence[str]) -> None:
    """Raise UserError if a player has no rollouts on this process, so none for dummy passes."""
    firsts = {label: [c for group in groups for c in group.rollouts(label)] for label in labels}
    for label in labels:
        if not firsts[label]:
            raise UserError(_lacks(label, groups, firsts))


def _lacks(label: str, groups: Sequence[Group], firsts: dict[str, list[Call]]) -> str:
    every = [first for own in firsts.values() for first in own]
    failed = sum(first.failure is not None for first in every)
    episodes = [episode for group in groups for episode in group.episodes]
    refused = sum(call.refused_by is not None for call in dead_ends(episodes))
    others = " and ".join(repr(name) for name, own in firsts.items() if own)
    reasons = "".join(f"\n  {why}" for why in described(groups, [*firsts]).values())
    return (
        f"on one of the processes {label!r} has no prompt in this step, so there is nothing to "
        f"learn from: of {len(every)} completions of {others} {failed} failed, and "
        f"{label!r} cannot take {refused} as its prompt. "
        f"Use fewer processes or more train.groups_per_step"
        f"{', and policies that write what the next one can take' if refused else ''}"
        f"{'; the first failures:' if reasons else ''}{reasons}"
    )
