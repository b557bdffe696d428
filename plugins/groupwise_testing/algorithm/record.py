"""Laws of an algorithm's metrics and state."""

import copy
import math
from collections.abc import Mapping

from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.rollouts import LogProbs
from groupwise_testing import state
from groupwise_testing.algorithm.case import Case
from groupwise_testing.laws import law


@law(
    "`measure` returns one number per decision",
    hint="`measure`: [b, t] tensors, finite at decisions; the core takes their means",
)
def measures(case: Case) -> str | None:
    measured: dict[str, Tensor] = {}
    algorithm = copy.deepcopy(case.algorithm)
    measure = algorithm.measure

    def recorded(current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        measured.update(measure(current, batch))
        return measured

    algorithm.measure = recorded  # type: ignore[method-assign]
    _, numbers = case.update(algorithm=algorithm)
    for name, value in measured.items():
        if value.ndim != 2:
            return f"{name} is {list(value.shape)}, expected [b, t]"
        if not math.isfinite(numbers[name]):
            return f"{name} is {numbers[name]:g} on average"
    return None


@law(state.NAME, hint=state.HINT)
def survives(case: Case) -> str | None:
    saved, restored = copy.deepcopy(case.algorithm), case.updater().algorithm
    case.update(algorithm=saved)
    return state.lost_in_checkpoint(saved, restored, "the algorithm")


LAWS = (measures, survives)
