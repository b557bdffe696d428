"""State of a part of a run (a reward model, an algorithm) as JSON and tensors, without pickle."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from groupwise.kit.errors import UserError

TENSOR, PAIRS, TUPLE = "<tensor>", "<pairs>", "<tuple>"
"""Keys of JSON objects that encode types which JSON does not have."""


def encode(state: Any, name: str) -> tuple[Any, dict[str, Tensor]]:
    """A state as JSON, and its tensors by the numbers that refer to them there.

    state: numbers, strings, None, tensors, and lists, tuples and mappings of these. Raises
    UserError for anything else, with its path; name: the owner of the state, the
    beginning of that path.
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, path: str) -> Any:
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, Tensor):
            number = str(len(tensors))
            tensors[number] = value
            return {TENSOR: number}
        if isinstance(value, list):
            return [plain(each, f"{path}.{i}") for i, each in enumerate(value)]
        if isinstance(value, tuple):
            return {TUPLE: plain(list(value), path)}
        if isinstance(value, Mapping):
            if all(isinstance(key, str) and not key.startswith("<") for key in value):
                return {key: plain(each, f"{path}.{key}") for key, each in value.items()}
            pairs = [[plain(key, path), each] for key, each in value.items()]
            return {PAIRS: [[k, plain(v, f"{path}.{i}")] for i, (k, v) in enumerate(pairs)]}
        raise UserError(
            f"{path} cannot be saved: expected numbers, strings, tensors, lists and mappings in "
            f"the result of state_dict, found {type(value).__name__}"
        )

    return plain(state, name), tensors


def decode(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `encode`."""
    if isinstance(state, list):
        return [decode(each, tensors) for each in state]
    if not isinstance(state, dict):
        return state
    if TENSOR in state:
        return tensors[state[TENSOR]]
    if TUPLE in state:
        return tuple(decode(state[TUPLE], tensors))
    if PAIRS in state:
        return {decode(key, tensors): decode(each, tensors) for key, each in state[PAIRS]}
    return {key: decode(each, tensors) for key, each in state.items()}


@runtime_checkable
class HasState(Protocol):
    """A part of a run whose state belongs in checkpoints."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...
