"""Clauses: what a picture should contain (GenEval's metadata), and how well it does."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from groupwise_verifiable.columns import is_missing
from groupwise_verifiable.images.detection import Detection, Relation, by_class, relations

Name = Annotated[str, Field(min_length=1)]


class Included(BaseModel):
    """A clause of `include`: `count` objects of a class, optionally with a colour and a position.

    position: a relation, and the index in `include` of the clause that it refers to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: Name = Field(alias="class")
    count: int = Field(default=1, ge=1)
    color: Name | None = None
    position: tuple[Relation, int] | None = None


class Excluded(BaseModel):
    """A clause of `exclude`: fewer objects of a class than `count`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: Name = Field(alias="class")
    count: int = Field(default=1, ge=1)


_INCLUDE, _EXCLUDE = TypeAdapter(list[Included]), TypeAdapter(list[Excluded])
_Clause = TypeVar("_Clause", bound=BaseModel)


def included(value: Any, where: str) -> list[Included]:
    """Returns the clauses of one row's `include`, a list or JSON; where: for error messages."""
    clauses: list[Included] = _clauses(_INCLUDE, value, where)
    for index, clause in enumerate(clauses):
        if clause.position and clause.position[1] not in {*range(len(clauses))} - {index}:
            raise ValueError(
                f"{where}, clause {index}: position {list(clause.position)} must refer to another "
                f"of the {len(clauses)} clauses, by its number from 0"
            )
    return clauses


def excluded(value: Any, where: str) -> list[Excluded]:
    """Returns the clauses of one row's `exclude`, a list or JSON; where: for error messages."""
    return _clauses(_EXCLUDE, value, where)


def _clauses(adapter: TypeAdapter[list[_Clause]], value: Any, where: str) -> list[_Clause]:
    if is_missing(value) or value == "":
        return []
    try:
        return (
            adapter.validate_json(value)
            if isinstance(value, str)
            else adapter.validate_python(value)
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{where}: {first['msg']}{' at ' + place if place else ''}, found {first['input']!r}"
        ) from error


def fulfilment(
    include: Sequence[Included],
    exclude: Sequence[Excluded],
    detections: Sequence[Detection],
    *,
    unexpected: bool,
    margin: float,
) -> float:
    """Returns how well the detections match the clauses: 0.0 to 1.0, 1.0 if all clauses hold.

    An `include` clause for n objects makes up to three checks, each with a value in [0, 1]:

    - count: 1 - (missing + surplus) / n, at least 0;
    - colour: objects with the colour / n;
    - position: pairs with an object of the other clause in the right relation / all such pairs.

    value = sum of the checks / (number of checks + violations). A violation is an `exclude` clause
    that does not hold and, if `unexpected`, any object of a class that no clause names. So an empty
    picture gets 0.0. Without `include` the value is 1.0 if there is no violation, else 0.0.
    """
    pools = by_class(detections)
    violations = sum(len(pools[clause.label]) >= clause.count for clause in exclude)
    if unexpected:
        named = {clause.label for clause in include} | {clause.label for clause in exclude}
        violations += sum(each.label not in named for each in detections)
    if not include:
        return float(violations == 0)
    required: defaultdict[str, int] = defaultdict(int)
    for clause in include:
        required[clause.label] += clause.count
    first = {label: pools[label][:count] for label, count in required.items()}
    assigned = _assigned(include, first)
    checks: list[float] = []
    for clause, objects in zip(include, assigned, strict=True):
        surplus = max(0, len(pools[clause.label]) - required[clause.label])
        wrong = clause.count - len(objects) + surplus
        checks.append(max(0.0, 1 - wrong / clause.count))
        if clause.color is not None:
            checks.append(sum(each.color == clause.color for each in objects) / clause.count)
        if clause.position is not None:
            relation, other = clause.position
            right = sum(
                relation in relations(each.box, target.box, margin)
                for each in objects
                for target in assigned[other]
            )
            checks.append(right / (clause.count * include[other].count))
    return sum(checks) / (len(checks) + violations)


def _assigned(
    include: Sequence[Included], pools: Mapping[str, Sequence[Detection]]
) -> list[list[Detection]]:
    """The objects of each clause. Clauses of one class first get objects of their own colour.

    Of the remaining objects, clauses without a colour choose first: any object is right for them.
    """
    left = {label: list(pool) for label, pool in pools.items()}
    assigned: list[list[Detection]] = [[] for _ in include]

    def take(index: int, color: str | None) -> None:
        pool = left[include[index].label]
        fitting = [each for each in pool if color in (None, each.color)]
        for each in fitting[: include[index].count - len(assigned[index])]:
            assigned[index].append(each)
            pool.remove(each)

    for index, clause in enumerate(include):
        if clause.color is not None:
            take(index, clause.color)
    for index in sorted(range(len(include)), key=lambda index: include[index].color is not None):
        take(index, None)
    return assigned
