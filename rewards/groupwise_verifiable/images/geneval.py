"""Published rules for detections: GenEval's, and Flow-GRPO's training reward.

Both check the clauses of `include` one by one, independently, so two clauses of one class may use
the same objects. A clause holds if its count, colour and position hold; a position refers to an
earlier clause.
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
    """Returns 1.0 if every clause holds, else 0.0.

    A clause for n objects checks the n most confident ones of its class; all must have the colour
    and position. Further objects do not matter, except to `exclude`. `evaluate_images.py` of
    GenEval, arXiv:2310.11513.
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
    """Returns the mean of the clauses' scores, 1.0 if all hold exactly; it may be negative.

    A clause for n objects scores 1 - |n - m| / n, with m objects detected. If m != n, colour and
    position add one score of 0. Else the colour adds the share of objects that have it; if all have
    it, the position adds a 1 if right, and a 0 and a 1 if wrong. `exclude` is ignored.
    `evaluate_reward` of `gen_eval.py` in github.com/yifan123/reward-server, the training reward of
    Flow-GRPO's configurations (arXiv:2505.05470).
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
    """The scores that one clause adds to the mean, its count first."""
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
        yield 1.0  # right or wrong: the original code adds it in both cases


def _colored(objects: Sequence[Detection], clause: Included) -> int:
    """Number of objects with the clause's colour; all of them if it has none."""
    return sum(clause.color in (None, each.color) for each in objects)


def _stands(
    objects: Sequence[Detection],
    clause: Included,
    holding: Sequence[Sequence[Detection] | None],
    margin: float,
) -> bool:
    """Whether each object has the clause's relation to each object of the other clause; False if
    the other clause does not hold."""
    if clause.position is None:
        return True
    relation, other = clause.position
    targets = holding[other]
    return targets is not None and all(
        relation in relations(each.box, target.box, margin)
        for each in objects
        for target in targets
    )
