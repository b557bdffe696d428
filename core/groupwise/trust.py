"""Trust: models whose folder brings Python code, which runs only where a configuration says so."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError

SETTING = "trust_remote_code"
"""What transformers and diffusers call it."""


def _checked(loading: dict[str, Any]) -> dict[str, Any]:
    """With the setting as a truth: `no` is a text in YAML, and a text would count as true."""
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
    """Let transformers refuse such a model where it would ask on the terminal, and wait.

    For libraries that call it and do not hand the setting on. It stays so: another thread may be
    loading, too.
    """
    with suppress(ImportError):
        from transformers import dynamic_module_utils

        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0


def brings_code(error: BaseException) -> bool:
    """Whether a library refused a model because it needs code that the model brings."""
    return isinstance(error, ValueError) and "custom code" in str(error)


UNTRUSTED = (
    f"it brings Python code of its own, which runs only with policy.loading.{SETTING}: true; set "
    f"that if you trust the code"
)
"""What to say of such a policy."""
NOT_RUN = (
    "it brings Python code of its own, which is not run; if you trust the code, call the model "
    "from a reward of your own"
)
"""What to say of such a reward."""
