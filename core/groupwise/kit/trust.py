"""Trust: code that comes with a model, or in a pickle, runs only if the configuration allows it."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError

from groupwise.kit import model_files
from groupwise.kit.errors import UserError, first_line
from groupwise.kit.model_files import PICKLED

SETTING = "trust_remote_code"
"""The name of this option in transformers and diffusers."""


def _checked(loading: dict[str, Any]) -> dict[str, Any]:
    """With the option as a bool: `no` is a string in YAML 1.2; any string would count as true."""
    if SETTING not in loading:
        return loading
    value = loading[SETTING]
    try:
        return {**loading, SETTING: value is not None and TypeAdapter(bool).validate_python(value)}
    except ValidationError:
        raise ValueError(f"{SETTING}: expected true or false, found {value!r}") from None


LoadingArguments = Annotated[dict[str, Any], AfterValidator(_checked)]
"""Arguments of a library's `from_pretrained`."""


def is_trusted(loading: Mapping[str, Any]) -> bool:
    """Whether a model's own code may run."""
    return bool(loading.get(SETTING, False))


def ask_nobody() -> None:
    """Make transformers refuse such a model instead of asking on the terminal.

    For libraries that call transformers without passing the option on. It is not undone, since
    another thread may be loading a model, too.
    """
    with suppress(ImportError):
        from transformers import dynamic_module_utils

        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0


def brings_code(error: BaseException) -> bool:
    """Whether a library refused a model because it needs the model's own code."""
    return isinstance(error, ValueError) and "custom code" in str(error)


UNTRUSTED = (
    f"it brings Python code of its own, which runs only with policy.loading.{SETTING}: true; set "
    f"that if you trust the code"
)
"""The message for such a policy."""
NOT_RUN = (
    "it brings Python code of its own, which is not run; if you trust the code, call the model "
    "from a reward of your own"
)
"""The message for such a reward."""
SAFETENSORS = "use_safetensors"
"""The name of the option of transformers and diffusers that keeps them from reading pickles."""
UNREADABLE = "SafetensorError"
"""The class of safetensors' errors, which the core does not import."""
LACKING = re.compile(r"no(t appear to have a)? file named \S*model(\.[\w-]+)?\.safetensors\b")
"""What transformers and diffusers say of a model without such a file, on this machine or a hub."""


def lacks_safetensors(error: BaseException) -> bool:
    """Whether a library refused a model because it has no weights as safetensors."""
    missing = isinstance(error, OSError) and error.errno is None  # and no error of the disk
    return missing and LACKING.search(str(error)) is not None


def is_of_weights(error: BaseException) -> bool:
    """Whether a library could not find, or could not read, a file of weights as safetensors."""
    return type(error).__name__ == UNREADABLE or lacks_safetensors(error)


def check_weights(
    model: str, loading: Mapping[str, Any], part: str = "", *, name: str = model_files.NAME
) -> None:
    """Raise UserError where the files of a policy's weights are missing, pickled or cut off.

    model: a folder, or a hub's name, of which nothing is known; part: the folder of a part of it;
    name: of the file of weights.
    """
    folder = Path(model, part)
    if not folder.is_dir() or not loading.get(SAFETENSORS, True):
        return
    problem = model_files.weights_problem(folder, name, loading.get("variant"))
    if problem is not None:
        of_part = f", {part}" if part else ""
        raise UserError(f"policy.model: {model!r}{of_part}: {_allowed(problem)}")


def reason_of_policy(error: Exception) -> str:
    """Why a policy's model cannot be loaded, in one line."""
    if brings_code(error):
        return UNTRUSTED
    return _allowed(PICKLED) if lacks_safetensors(error) else _damaged(error)


def reason_of_reward(error: Exception, model: str | None = None) -> str:
    """Why a reward's model cannot be loaded, in one line.

    model: its folder, whose files tell more than the error, or its name on a hub.
    """
    if brings_code(error):
        return NOT_RUN
    if model is not None and Path(model).is_dir() and is_of_weights(error):
        problem = model_files.weights_problem(Path(model))
        if problem is not None:
            return problem
    return PICKLED if lacks_safetensors(error) else _damaged(error)


def _allowed(problem: str) -> str:
    allow = f"; or allow pickles by policy.loading.{SAFETENSORS}: false"
    return problem + allow if problem == PICKLED else problem


def _damaged(error: Exception) -> str:
    """The first line of an error; of a file that safetensors cannot read, also what to do."""
    if type(error).__name__ != UNREADABLE:
        return first_line(error)
    return f"a file of its weights is damaged or cut off ({first_line(error)}); download it again"
