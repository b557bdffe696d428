"""Credit: the scores of rollouts that rewards do not judge, from those of the calls that follow."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from groupwise.kit.errors import UserError
from groupwise.record import Call, Episode, Group
from groupwise.rewards import Score, Scores


def credit(groups: Sequence[Group], scores: Scores, refused: Mapping[str, float]) -> None:
    """Write the scores of rollouts that are not judged.

    scores: of the step's rewards; refused: by label, the value of each reward for a call whose
    reply another player could not take as its context, and that nothing follows. Raises UserError
    for process rewards if there are such rollouts.
    """
    for episode in (episode for group in groups for episode in group.episodes):
        if all(call.first.score is not None for call in episode.calls):
            continue
        if scores.steps is not None:
            raise UserError(
                "process rewards judge the decisions of completions that rewards see, and not all "
                "policies of this run have such completions (in a chain only the last has)"
            )
        for call, score in _of_calls(episode, len(scores.names), refused).items():
            if call.first is call and call.score is None:
                call.score = score


def _of_calls(episode: Episode, count: int, refused: Mapping[str, float]) -> Mapping[Call, Score]:
    """The scores of all calls: their own if judged, else the mean of those that follow; where
    nothing follows, those of the latest judged call before it.

    Failed ones are left out of the mean, which is NaN if none is scored. A call that is not judged
    failed if itself did, or all that follow it. count: of rewards.
    """
    following = defaultdict[Call, list[Call]](list)
    for call in episode.calls:
        if call.parent is not None:
            for each in call.parent.request if call.follows_all else [call.parent]:
                following[each].append(call)
    scores = dict[Call, Score]()
    own = {call: call.first.score for call in episode.judged}
    for call in sorted(episode.calls, key=lambda each: len([*each.ancestors]), reverse=True):
        failed = call.failure is not None
        if (judged := own.get(call)) is not None:
            scores[call] = Score(judged.values, failed or judged.failed)
        elif after := [scores[each] for each in following[call]]:
            known = [each.values for each in after if not each.failed]
            values = [_mean([row[k] for row in known]) for k in range(count)]
            scores[call] = Score(values, failed or all(each.failed for each in after))
        elif call.refused_by is not None:
            scores[call] = Score([refused[call.label]] * count, failed)
        else:
            stands = next((own[each] for each in call.ancestors if each in own), None)
            values = [math.nan] * count if stands is None else [*stands.values]
            scores[call] = Score(values, failed or (stands is not None and stands.failed))
    return scores


def _mean(values: Sequence[float]) -> float:
    """Of those that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    # Not `sum`, which Python rounds differently since 3.12.
    return reduce(add, known, 0.0) / len(known) if known else math.nan
