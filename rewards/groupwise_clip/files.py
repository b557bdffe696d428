"""Files of weights: checking, downloading, and reading them without running code in them."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.kit import trust
from groupwise_clip.settings import HUB

_MORE_THAN_TENSORS = (
    "it holds more than tensors and plain values, which could run code when read; if you trust it, "
    "convert it to safetensors"
)


@contextmanager
def quiet() -> Iterator[None]:
    """The context without progress bars, log lines or warnings; errors are raised as usual."""
    root, disabled = logging.getLogger(), logging.root.manager.disable
    # open_clip calls `logging.info`, which permanently adds a handler to a bare root logger.
    handler = logging.NullHandler()
    root.addHandler(handler)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.removeHandler(handler)


def check_file(name: str, *, setting: str) -> None:
    """Raises ValueError, which names the setting, for a file that does not exist.

    Of `hf-hub:OWNER/NAME/FILE` only the form is checked; nothing is downloaded.
    """
    if name.startswith(HUB):
        _repository(name, setting)
    elif not Path(name).is_file():
        problem = "is a folder, expected a file" if Path(name).is_dir() else "does not exist"
        raise ValueError(f"`{setting}`: the file {name!r} {problem}")


def fetched(name: str, *, setting: str) -> str:
    """Returns the path of a file; `hf-hub:OWNER/NAME/FILE` is downloaded first.

    Raises ValueError, which names the setting, if there is no such file.
    """
    check_file(name, setting=setting)
    if not name.startswith(HUB):
        return name
    from huggingface_hub import hf_hub_download

    repository, file = _repository(name, setting)
    try:
        with quiet():
            return hf_hub_download(repository, file)
    except Exception as error:  # the hub's errors, the network's and the disk's
        raise ValueError(f"`{setting}`: {name!r} cannot be fetched: {reason(error)}") from error


def _repository(name: str, setting: str) -> tuple[str, str]:
    """OWNER/NAME and FILE."""
    owner, _, rest = name.removeprefix(HUB).partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository and file):
        raise ValueError(f"`{setting}`: expected `{HUB}OWNER/NAME/FILE`, found {name!r}")
    return f"{owner}/{repository}", file


def read_tensors(path: str) -> dict[str, Tensor]:
    """Returns the tensors of a .safetensors file, or of a file by `torch.save`, on the CPU.

    A dict under "state_dict" is unpacked. Raises ValueError for anything else; pickled objects
    other than tensors and plain values are not loaded.
    """
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            tensors: Any = load_file(path)
        else:
            with quiet():
                tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise all kinds of errors for other files
        raise ValueError(f"cannot read weights from {path!r}: {reason(error)}") from error
    if isinstance(tensors, dict) and isinstance(tensors.get("state_dict"), dict):
        tensors = tensors["state_dict"]
    if not isinstance(tensors, dict) or not all(isinstance(v, Tensor) for v in tensors.values()):
        raise ValueError(f"{path!r} does not hold weights: expected a dict of named tensors")
    return tensors


def reason(error: Exception, model: str | None = None) -> str:
    """Returns the first lines of an error's message, or what to do about it.

    model: the folder, or its name on a hub, that transformers could not load.
    """
    text = str(error).strip()
    if trust.brings_code(error) or trust.is_of_weights(error):
        return trust.reason_of_reward(error, model)
    if "weights_only" in text or "Weights only" in text:  # torch advises to switch it off
        return _MORE_THAN_TENSORS
    return " ".join(line.strip() for line in text.splitlines()[:3]) or type(error).__name__
