"""Models that judge: what their names tell, and how they are loaded, once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from groupwise import trust
from groupwise.errors import first_line

Parts = TypeVar("Parts")
_Model = TypeVar("_Model")
_models: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def check_model_name(name: str, *, setting: str) -> None:
    """Raises ValueError, which names the setting, where a name means a folder that holds no model.

    Whether the hub has a model of that name shows when it is loaded.
    """
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"`{setting}`: the folder {name!r} holds no model: no config.json")
    elif path.is_file():
        raise ValueError(f"`{setting}`: expected a folder or a hub name, found the file {name!r}")
    elif name.count("/") > 1 or name.startswith(("/", ".", "~")):
        raise ValueError(f"`{setting}`: the folder {name!r} does not exist")


class LazyModel(ABC, Generic[Parts]):
    """What works with a model that is loaded when first used. It is for one thread."""

    def __init__(self) -> None:
        self._parts: Parts | None = None

    def load(self) -> None:
        """Loads the model, unless that is done; ValueError of one line where it cannot be had."""
        self.loaded()

    def loaded(self) -> Parts:
        """Returns the model, and what belongs to it."""
        if self._parts is None:
            self._parts = self._load()
        return self._parts

    @abstractmethod
    def _load(self) -> Parts:
        """Returns the model and what belongs to it."""


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Makes whatever loading a model raises a ValueError of one line.

    model: how the line begins, the setting and its value.
    """
    try:
        yield
    except Exception as error:  # transformers, torch, JSON and the hub raise a dozen kinds
        reason = trust.NOT_RUN if trust.brings_code(error) else first_line(error)
        raise ValueError(f"{model} cannot be loaded: {reason}") from error


def default_device(device: str | None) -> str:
    """Returns the device that a setting names: the GPU where it names none and there is one."""
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def for_use(model: Any, device: str | None) -> Any:
    """Returns a torch module on its device, in evaluation; ValueError where it cannot be there."""
    place = default_device(device)
    try:
        return model.to(place).eval()
    except (RuntimeError, AssertionError) as error:  # no such device, or no room on it
        raise ValueError(f"`device`: {place!r}: {first_line(error)}") from error


def shared(make: Callable[..., _Model], *settings: Hashable) -> _Model:
    """Returns `make(*settings)`, or what it made of the same settings while that is in use.

    So rewards of one process that name the same model use the same one.
    """
    model: _Model | None = _models.get((make, *settings))
    if model is None:
        model = make(*settings)
        _models[make, *settings] = model
    return model
