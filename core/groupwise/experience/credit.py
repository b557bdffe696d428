"""Credit: the scores of rollouts that rewards do not judge, from those of the calls that follow."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from groupwise.kit.errors import UserError
from groupwise.record import Call, Episode, Group
from groupwise.rewards import Scores

Credit = tuple[Sequence[float], bool]
"""The value of each reward for a call, and whether it failed."""


def credit(groups: Sequence[Group], scores: Scores, refused: Mapping[str, float]) -> None:
    """Write the scores of rollouts that are not judged.

    scores: of the step's rewards; refused: by label, the value of each reward for a call whose
    reply another player could not take as its context, and that nothing follows. Raises UserError
    for process rewards if there are such rollouts.
    """
    for episode in (episode for group in groups for episode in group.episodes):
        if all(rollout.rewards is not None for rollout in episode.rollouts):
            continue
        if scores.steps is not None:
            raise UserError(
                "process rewards judge the decisions of completions that rewards see, and not all "
                "policies of this run have such completions (in a chain only the last has)"
            )
        of_calls = _of_calls(episode, len(scores.names), refused)
        for rollout in episode.rollouts:
            if rollout.rewards is None:
                rollout.rewards, rollout.failed = of_calls[rollout.first]


def _of_calls(episode: Episode, count: int, refused: Mapping[str, float]) -> Mapping[Call, Credit]:
    """The credit of all calls: their own rewards if judged, else the mean of those that follow;
    where nothing follows, those of the latest judged call before it.

    Failed ones are left out of the mean, which is NaN if none is scored. A call that is not judged
    failed if itself did, or all that follow it. count: of rewards.
    """
    following = defaultdict[Call, list[Call]](list)
    for call in episode.calls:
        if call.parent is not None:
            for each in call.parent.request if call.follows_all else [call.parent]:
                following[each].append(call)
    of_calls = dict[Call, Credit]()
    own = {call: (call.rollout.rewards or (), call.rollout.failed) for call in episode.judged}
    for call in sorted(episode.calls, key=lambda each: len([*each.ancestors]), reverse=True):
        failed = call.rollout.failure is not None
        if call in own:
            values, has_failed = own[call]
        elif after := [of_calls[each] for each in following[call]]:
            known = [values for values, has_failed in after if not has_failed]
            values = [_mean([row[k] for row in known]) for k in range(count)]
            has_failed = all(has_failed for _, has_failed in after)
        elif call.refused_by is not None:
            values, has_failed = [refused[call.label]] * count, False
        else:
            nothing: Credit = ([math.nan] * count, False)
            values, has_failed = next((own[x] for x in call.ancestors if x in own), nothing)
        of_calls[call] = (values, failed or has_failed)
    return of_calls


def _mean(values: Sequence[float]) -> float:
    """Of those that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    # Not `sum`, which Python rounds differently since 3.12.
    return reduce(add, known, 0.0) / len(known) if known else math.nan
