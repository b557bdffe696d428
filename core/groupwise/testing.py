"""For plugin authors: checks of the laws that a part must keep.

Each check raises AssertionError with the law that is broken, the measured numbers, and what to look
at. Put them into the tests of your plugin:

    from groupwise import testing

    def test_laws():
        testing.check_policy(MyPolicy(MyPolicy.Config()), rows)

The engine uses none of this: the laws are the package `groupwise_testing`, imported at first use.
testing.pyi has their types.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":  # which Python itself looks for
        raise AttributeError(name)
    laws = _laws(name)
    if name not in ("__all__", *laws.__all__):
        raise AttributeError(f"module 'groupwise.testing' has no attribute {name!r}")
    return getattr(laws, name)


def __dir__() -> list[str]:
    return sorted(_laws("__all__").__all__)


def _laws(name: str) -> Any:
    try:
        return importlib.import_module("groupwise_testing")
    except ModuleNotFoundError as error:
        if error.name != "groupwise_testing":
            raise
        raise ModuleNotFoundError(
            f"groupwise.testing.{name} is in the package groupwise_testing, which comes with "
            f"groupwise and is not installed here: install groupwise again",
            name=error.name,
        ) from error
