"""Trust: code that comes with a model, or in a pickle, runs only if the configuration allows it."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError

from groupwise.errors import first_line

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
PICKLED = (
    "it has no weights as safetensors, and pickled ones (.bin) are not read, since a pickle can "
    "run code; convert them: load the model in Python with use_safetensors=False, and write it by "
    "save_pretrained"
)
"""The message for a model whose weights are pickled, or missing."""


def lacks_safetensors(error: BaseException) -> bool:
    """Whether a library refused a model because it has no weights as safetensors."""
    missing = isinstance(error, OSError) and error.errno is None  # and no error of the disk
    return missing and "model.safetensors" in str(error)  # libraries put words before `model`


def reason_of_policy(error: Exception) -> str:
    """Why a policy's model cannot be loaded, in one line."""
    if brings_code(error):
        return UNTRUSTED
    if lacks_safetensors(error):
        return f"{PICKLED}; or allow pickles by policy.loading.{SAFETENSORS}: false"
    return first_line(error)


def reason_of_reward(error: Exception) -> str:
    """Why a reward's model cannot be loaded, in one line."""
    if brings_code(error):
        return NOT_RUN
    return PICKLED if lacks_safetensors(error) else first_line(error)
