"""Driver: calls a function of a program on a server.

The text of this file is sent there, with a line below it that calls `main`; the call itself is read
from standard input.
"""

import asyncio
import builtins
import inspect
import json
import sys
import types


def answer(code: str, opening: str, encoding: str) -> dict[str, object]:
    """What the call gives, as `groupwise_sandbox.objects` would answer it.

    code: the program; opening: what it may use without an import; encoding: the text of the module
    `groupwise_sandbox.plain`.
    """
    plain, program = types.ModuleType("plain"), types.ModuleType("answer")
    exec(encoding, plain.__dict__)
    exec(opening, builtins.__dict__)
    call = json.load(sys.stdin)
    try:
        exec(compile(code, "answer.py", "exec"), program.__dict__)
        name, target = call["name"], program
        if hasattr(program.__dict__.get("Solution"), name):
            name = f"Solution.{name}"
        for part in name.split("."):
            target = getattr(target, part)
            if isinstance(target, type) and "." in name:
                target = target()
        value = target(*plain.decoded(call["arguments"]))  # type: ignore[operator]
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return {"value": plain.encoded(value)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


def main(mark: str, *texts: str) -> None:
    """Print the answer on a line that begins with a mark; what the program prints is no output."""
    printed, sys.stdout = sys.stdout, sys.stderr
    line = mark + json.dumps(answer(*texts))
    printed.write(f"\n{line}\n")
    printed.flush()
