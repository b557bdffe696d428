"""Sharing: rewards of one process that name the same model use the same one."""

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

_Model = TypeVar("_Model")
_lock = threading.Lock()
_models: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def shared(make: Callable[..., _Model], *settings: Hashable) -> _Model:
    """Returns `make(*settings)`, or what it made of the same settings while that is in use."""
    with _lock:
        model: _Model | None = _models.get((make, *settings))
        if model is None:
            model = make(*settings)
            _models[make, *settings] = model
        return model
