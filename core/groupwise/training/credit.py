"""Credit: the scores of calls that rewards do not judge, from those of the calls that follow."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from groupwise.rewards import Scores
from groupwise.training.calls import Call, ancestors


def credit(
    scores: Scores, judged: Sequence[Call], calls: Sequence[Call], refused: Mapping[str, float]
) -> Scores:
    """The scores of all calls: their own if judged, else the mean of those that follow; where
    nothing follows, those of the latest judged call before it.

    Failed ones are left out of the mean, which is NaN if none is scored. A call that is not judged
    failed if itself did, or all that follow it.

    scores: of the judged calls; refused: by label, the value of each reward for a call whose reply
    another player could not take as its context, and that nothing follows.
    """
    places = {call: place for place, call in enumerate(judged)}
    following = defaultdict[Call, list[Call]](list)
    for call in calls:
        if call.parent is not None:
            following[call.parent].append(call)
    own, own_failed = scores.values.tolist(), scores.failed.tolist()
    values, failed = dict[Call, list[float]](), dict[Call, bool]()
    for call in sorted(calls, key=lambda call: len([*ancestors(call)]), reverse=True):
        failed[call] = call.failure is not None
        if call in places:
            values[call] = own[places[call]]
            failed[call] |= own_failed[places[call]]
        elif after := following[call]:
            known = [values[each] for each in after if not failed[each]]
            values[call] = [_mean([row[k] for row in known]) for k in range(len(scores.names))]
            failed[call] |= all(failed[each] for each in after)
        elif call.refused_by is not None:
            values[call] = [refused[call.label]] * len(scores.names)
        else:
            stands = next((places[each] for each in ancestors(call) if each in places), None)
            values[call] = [math.nan] * len(scores.names) if stands is None else own[stands]
            failed[call] |= stands is not None and own_failed[stands]
    return Scores(
        names=scores.names,
        weights=scores.weights,
        scales=scores.scales,
        values=scores.values.new_tensor([values[call] for call in calls]),
        failed=scores.failed.new_tensor([failed[call] for call in calls]),
    )


def _mean(values: Sequence[float]) -> float:
    """Of those that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    # Not `sum`, which Python rounds differently since 3.12.
    return reduce(add, known, 0.0) / len(known) if known else math.nan
