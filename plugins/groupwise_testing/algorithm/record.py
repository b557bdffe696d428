"""Laws of an algorithm's metrics and state."""

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.rollouts import LogProbs
from groupwise.storage.state import HasState, decode, encode
from groupwise.weights import KeptWeights
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


@law(
    "its state survives a checkpoint",
    hint="`state_dict` and `load_state_dict`: numbers, strings, tensors, lists and mappings",
)
def state(case: Case) -> str | None:
    if not isinstance(case.algorithm, HasState):
        return None
    one, other = (copy.deepcopy(case.algorithm) for _ in range(2))
    case.update(algorithm=one)
    toy = case.toy()
    other.prepare(toy, KeptWeights(toy))
    saved = encode(one.state_dict(), "the algorithm")
    other.load_state_dict(decode(*saved))
    again = encode(other.state_dict(), "the algorithm")
    same = saved[0] == again[0] and all(
        torch.equal(value, again[1][name]) for name, value in saved[1].items()
    )
    return None if same else f"saved {saved[0]}, and after loading it is {again[0]}"


LAWS = (measures, state)
