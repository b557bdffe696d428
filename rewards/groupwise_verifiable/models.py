"""Models that score completions: checking their names, and loading each once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from groupwise.kit import trust
from groupwise.kit.errors import first_line

Parts = TypeVar("Parts")
_Model = TypeVar("_Model")
_models: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def check_model_name(name: str, *, setting: str) -> None:
    """Raises ValueError, which names the setting, for a path without a model.

    Hub names are not checked; loading does that.
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
    """Base class of rewards whose model is loaded at the first use; for one thread only."""

    def __init__(self) -> None:
        self._parts: Parts | None = None

    def load(self) -> None:
        """Loads the model if needed; a one-line ValueError where that fails."""
        self.loaded()

    def loaded(self) -> Parts:
        """Returns the model with its tokenizer, processor or the like, loaded if needed."""
        if self._parts is None:
            self._parts = self._load()
        return self._parts

    @abstractmethod
    def _load(self) -> Parts:
        """Loads the model with its tokenizer, processor or the like."""


@contextmanager
def loading(model: str, folder: str | None = None) -> Iterator[None]:
    """The context in which any error of loading a model becomes a one-line ValueError.

    model: the beginning of the line, the setting and its value; folder: the model's, or its name
    on a hub.
    """
    try:
        yield
    except Exception as error:  # transformers, torch, JSON and the hub raise a dozen kinds
        raise ValueError(
            f"{model} cannot be loaded: {trust.reason_of_reward(error, folder)}"
        ) from error


def default_device(device: str | None) -> str:
    """Returns the device of a setting; for None the GPU if there is one, else the CPU."""
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def for_use(model: Any, device: str | None) -> Any:
    """Returns a torch module on its device, in eval mode; ValueError where the device fails."""
    place = default_device(device)
    try:
        return model.to(place).eval()
    except (RuntimeError, AssertionError) as error:  # no such device, or no room on it
        raise ValueError(f"`device`: {place!r}: {first_line(error)}") from error


def shared(make: Callable[..., _Model], *settings: Hashable) -> _Model:
    """Returns `make(*settings)`, or an earlier result for the same settings that is still in use.

    Rewards of one process with the same model then share it.
    """
    model: _Model | None = _models.get((make, *settings))
    if model is None:
        model = make(*settings)
        _models[make, *settings] = model
    return model
