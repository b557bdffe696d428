"""Python: a tool that runs code in a sandbox, with a state that lasts for an episode."""

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from groupwise_agents.threads import in_thread
from groupwise_agents.tool import ToolError, Unavailable

if TYPE_CHECKING:
    from groupwise_sandbox.sandbox import Sandbox

OUTPUT = 1 << 16
"""Bytes of what a call prints."""
_CELLS = "cells.json"
_DRIVER = f"""
import ast, contextlib, io, json

def run(cell, names):
    body = ast.parse(cell).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if value is not None:
            print(repr(value))

def main():
    names = {{"__name__": "__main__"}}
    *earlier, cell = json.load(open({_CELLS!r}))
    for each in earlier:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            run(each, names)
    try:
        run(cell, names)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")

main()
"""


class PythonConfig(BaseModel):
    """The tool `python`, which runs code in a sandbox; names stay for an episode's later calls."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(
        5.0, gt=0, description="processor time of a call, with the calls before it"
    )
    memory: int = Field(256, ge=16, description="memory of a call, in MiB")
    modules: list[str] = Field(
        [], description="modules besides the standard library's, such as numpy"
    )


class Interpreter:
    """The sandbox of the tool, for all episodes. Raises UserError where there is none."""

    def __init__(self, config: PythonConfig) -> None:
        # Imported here: a run without the tool needs no sandbox, nor a system that has one.
        from groupwise_sandbox.limits import Limits
        from groupwise_sandbox.sandbox import Sandbox

        limits = Limits(seconds=config.seconds, memory=config.memory << 20, output=OUTPUT)
        self._sandbox = Sandbox(limits=limits, modules=config.modules)

    def begun(self) -> "Python":
        """The tool of an episode."""
        return Python(self._sandbox)

    def close(self) -> None:
        self._sandbox.close()


class Python:
    """The tool of one episode.

    No process is kept while the model writes: a call runs those before it once more, in a new one,
    and prints its own output alone. Their chance is the same each time, so the state is, too.
    """

    def __init__(self, sandbox: "Sandbox") -> None:
        self._sandbox, self._cells = sandbox, list[str]()

    async def python(self, code: str) -> str:
        """Run Python code, which may use what earlier calls have defined.

        Args:
            code: the code; what it prints is the answer, and so is the value of its last line
        """
        from groupwise_sandbox.process import SandboxError

        cells = [*self._cells, code]
        try:
            text, is_whole = await in_thread(partial(self._run, cells), "python")
        except SandboxError as error:
            raise Unavailable(f"Python failed: {error}") from error
        if not is_whole:
            raise ToolError(f"{text}; the call has left nothing for later ones")
        self._cells.append(code)
        return text

    def _run(self, cells: Sequence[str]) -> tuple[str, bool]:
        """What the last one printed, and whether it ended by itself."""
        finished = self._sandbox.run(_DRIVER, files={_CELLS: json.dumps(cells)})
        text = finished.stdout.decode("utf-8", "replace")
        if finished.ended == "exit" and finished.status == 0:
            return text, True
        return f"{text}\nit {finished.why}".strip(), False
