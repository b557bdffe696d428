"""GenEval's rule, and the reward that Flow-GRPO trains on: published judgements of detections.

Both read the clauses of `include` one by one, each for itself, and so may two of one class mean the
same objects. A clause holds where its number, its colour and its position do; a position refers to
an earlier clause.
"""

from collections.abc import Iterator, Sequence

from groupwise_verifiable.images.clauses import Excluded, Included
from groupwise_verifiable.images.detection import Detection, by_class, relations


def geneval(
    include: Sequence[Included],
    exclude: Sequence[Excluded],
    detections: Sequence[Detection],
    *,
    margin: float,
) -> float:
    """Returns 1.0 where every clause holds, else 0.0.

    A clause for n objects is about the n surest of its class, all of which must have the colour and
    stand right; how many more there are is of no consequence, except to `exclude`.
    `evaluate_images.py` of GenEval, arXiv:2310.11513.
    """
    objects = by_class(detections)
    holding: list[Sequence[Detection] | None] = []
    for clause in include:
        first = objects[clause.label][: clause.count]
        holds = len(first) == clause.count and _colored(first, clause) == clause.count
        if holds and clause.position is not None:
            holds = _stands(first, clause, holding, margin)
        holding.append(first if holds else None)
    forbidden = any(len(objects[clause.label]) >= clause.count for clause in exclude)
    return float(None not in holding and not forbidden)


def flow_grpo(
    include: Sequence[Included], detections: Sequence[Detection], *, margin: float
) -> float:
    """Returns the mean of what the clauses score, 1.0 where all hold exactly; it may be negative.

    A clause for n objects scores 1 - |n - m| / n for the m that there are. Unless m is n, its
    colour and position score a single 0 together. Else a colour scores the share that has it, and
    where that is all, a position scores 1; one that is wrong scores 0 and 1, so half. `exclude` has
    no part in it. `evaluate_reward` of `gen_eval.py` in github.com/yifan123/reward-server, which
    the configurations of Flow-GRPO (arXiv:2505.05470) train on.
    """
    objects = by_class(detections)
    holding: list[Sequence[Detection] | None] = []
    scores: list[float] = []
    for clause in include:
        every = objects[clause.label]
        own = list(_scores(clause, every, holding, margin))
        scores += own
        holding.append(every if all(score == 1.0 for score in own) else None)
    return sum(scores) / len(scores)


def _scores(
    clause: Included,
    objects: Sequence[Detection],
    holding: Sequence[Sequence[Detection] | None],
    margin: float,
) -> Iterator[float]:
    """What one clause adds to the mean, its number first."""
    yield 1 - abs(clause.count - len(objects)) / clause.count
    if len(objects) != clause.count:
        if clause.color is not None or clause.position is not None:
            yield 0.0
        return
    colored = _colored(objects, clause)
    if clause.color is not None:
        yield colored / clause.count
    if clause.position is not None and colored == clause.count:
        if holding[clause.position[1]] is None:
            yield 0.0
            return
        if not _stands(objects, clause, holding, margin):
            yield 0.0
        yield 1.0  # right or wrong: their loop goes on to it


def _colored(objects: Sequence[Detection], clause: Included) -> int:
    """How many have the clause's colour; all where it has none."""
    return sum(clause.color in (None, each.color) for each in objects)


def _stands(
    objects: Sequence[Detection],
    clause: Included,
    holding: Sequence[Sequence[Detection] | None],
    margin: float,
) -> bool:
    """Whether each object stands as the clause says to each of the other clause, if that holds."""
    if clause.position is None:
        return True
    relation, other = clause.position
    targets = holding[other]
    return targets is not None and all(
        relation in relations(each.box, target.box, margin)
        for each in objects
        for target in targets
    )
