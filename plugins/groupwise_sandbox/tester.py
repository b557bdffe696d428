"""Tester: the process of tests that are code, which reach a program through stubs alone."""

import traceback
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from groupwise_sandbox import frames
from groupwise_sandbox.confinement import CHANNEL
from groupwise_sandbox.stubs import ArgumentError, Stubs


def test(payload: Mapping[str, Any], module: types.ModuleType) -> None:
    """Run tests in a module where the names of a program are stubs, and write the verdict."""
    stubs = Stubs(payload["classes"], payload["exceptions"])
    module.__dict__.update({name: stubs.named(name) for name in payload["stubs"]})
    try:
        frames.write(CHANNEL, {"reasons": _reasons(payload, module, stubs)})
    except ArgumentError as error:
        frames.write(CHANNEL, {"refused": str(error)})


def _reasons(
    payload: Mapping[str, Any], module: types.ModuleType, stubs: Stubs
) -> list[str | None]:
    """Of each test, why it failed."""
    code, calls = payload["code"], payload["calls"]
    failure = partial(_failure, code=code, stubs=stubs)
    first = failure(lambda: exec(compile(code, "answer.py", "exec"), module.__dict__))
    if first is not None or not calls:
        return [first] * max(1, len(calls))
    return [failure(partial(exec, call, module.__dict__)) for call in calls]


def _failure(test: Callable[[], None], code: str, stubs: Stubs) -> str | None:
    """Why a test fails, with its line of the code, or None."""
    stubs.broken = None
    try:
        test()
        if stubs.broken is not None:
            raise stubs.broken
    except ArgumentError:
        raise
    except BaseException as error:
        places = [
            line
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename == "answer.py"
        ]
        line = code.splitlines()[places[-1] - 1].strip() if places else ""
        return f"{line}: {type(error).__name__}: {error}"[:1000]
    return None
