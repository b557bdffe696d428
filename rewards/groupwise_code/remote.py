"""Remote: runs programs on a server of SandboxFusion's protocol; what is expected stays here.

POST /run_code {"code", "language", "stdin", "compile_timeout", "run_timeout", "memory_limit_MB"},
answered by {"status", "message", "compile_result", "run_result"}; a result is {"status",
"execution_time", "return_code", "stdout", "stderr"}. Source: bytedance/SandboxFusion 469de08,
sandbox/server/sandbox_api.py and sandbox/runners/types.py.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from typing import Any

from groupwise.kit import foreign_json
from groupwise_code.answer import Answer
from groupwise_code.machine import LEETCODE, SERVED, Left
from groupwise_code.problem import Calling, Case, Printing, Testing
from groupwise_sandbox import plain
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import Ended, Finished, SandboxError
from groupwise_sandbox.sandbox import Called, Tested
from groupwise_sandbox.service import PassingError, Service

COMPILING = 10.0
"""Seconds in which a program must be compiled."""
MARGIN = 10.0
"""Seconds beside a program's own in which the server must answer: requests wait there, too."""
PROTOCOL = "SandboxFusion's protocol, and `server` its address up to /run_code"
MARK = "answer of the call: "


class Remote:
    """A server that runs programs. Its methods may be called in any thread."""

    def __init__(self, server: str, limits: Limits, *, parallel: int, retries: int) -> None:
        """parallel: requests at the same time."""
        address = f"{server.rstrip('/').removesuffix('/run_code')}/run_code"
        self._limits, self.parallel = limits, parallel
        self._service = Service(address, parallel=parallel, retries=retries, protocol=PROTOCOL)

    def refusal(self, language: str) -> str | None:
        """Why programs of a language cannot be run on a server, or None."""
        return None if language in SERVED else f"a server runs no programs in {language!r}"

    def refused(self, case: Case) -> str | None:
        """Why a case cannot be tried on a server, or None: what is expected would be sent there."""
        if isinstance(case, Testing):
            return "tests that are code are run on this machine alone: leave `server` out"
        if isinstance(case, Printing) and case.checker is not None:
            return "a row's checker is run on this machine alone: leave `server` out"
        return None

    def program(self, answer: Answer) -> Answer:
        """What is sent; the server compiles it for each run."""
        return answer

    def run(self, program: Answer, stdin: str, left: Left) -> Finished:
        """Run a program with this standard input. Raises SandboxError for the server's faults."""
        memory = -1 if program.language == "javascript" else self._limits.memory >> 20
        body = {
            "code": program.code,
            "language": SERVED[program.language],
            "stdin": stdin,
            "compile_timeout": COMPILING,
            "run_timeout": self._limits.seconds,
            "memory_limit_MB": memory,  # node reserves more than it uses
        }
        seconds = COMPILING + self._limits.seconds + MARGIN
        return self._service.ask(body, _finished, seconds=seconds, left=left)

    def call(self, program: Answer, case: Calling, left: Left) -> Called:
        """Call a function of a program, without what it should return. Raises SandboxError."""
        encoding = (files("groupwise_sandbox") / "plain.py").read_text("utf-8")
        driver = (files("groupwise_code") / "driver.py").read_text("utf-8")
        texts = f"{MARK!r}, {program.code!r}, {LEETCODE!r}, {encoding!r}"
        sent = {"name": case.name, "arguments": plain.encoded([*case.arguments])}
        finished = self.run(
            Answer("python", f"{driver}\n\nmain({texts})\n"), json.dumps(sent), left
        )
        return _called(finished)

    def test(self, program: Answer, case: Testing) -> Tested:
        """Raises SandboxError, as `refused` says before a run."""
        raise SandboxError(str(self.refused(case)))

    def checked(self, case: Printing, printed: str) -> Finished:
        """Raises SandboxError, as `refused` says before a run."""
        raise SandboxError(str(self.refused(case)))

    def ending(self, seconds: float) -> AbstractContextManager[None]:
        """Requests end in the seconds that are left to each."""
        return nullcontext()

    def close(self) -> None:
        """End the connections."""
        self._service.close()


def _finished(answer: Any) -> Finished:
    """How a program ended. Raises PassingError where the server failed."""
    if answer is None:
        return Finished(ended="output", status=0, stdout=b"", stderr="", seconds=0.0)
    if not isinstance(answer, dict) or answer.get("status") not in ("Success", "Failed"):
        words = answer.get("message") if isinstance(answer, dict) else None
        raise PassingError(f"failed itself: {words or 'no status'!s:.200}")
    for name in ("compile_result", "run_result"):
        result = answer.get(name)
        if not isinstance(result, dict):
            continue
        ended, status = _ending(result)
        if name == "run_result" or ended != "exit" or status != 0:
            return Finished(
                ended=ended,
                status=status,
                stdout=_text(result, "stdout").encode("utf-8", "replace"),
                stderr=_text(result, "stderr")[-4096:],
                seconds=0.0,
            )
    raise PassingError("answered without a result")


def _ending(result: Mapping[str, Any]) -> tuple[Ended, int]:
    if result.get("status") == "TimeLimitExceeded":
        return "time", 1
    status = result.get("return_code")
    if result.get("status") != "Finished" or not isinstance(status, int):
        raise PassingError("answered with a result that is not finished")
    return ("signal" if status < 0 or status > 128 else "exit"), status


def _text(result: Mapping[str, Any], name: str) -> str:
    text = result.get(name)
    return text if isinstance(text, str) else ""


def _called(finished: Finished) -> Called:
    """What a call gave, by the last line that has an answer."""
    lines = finished.stdout.decode("utf-8", "replace").splitlines()
    answers = [each.removeprefix(MARK) for each in lines if each.startswith(MARK)]
    if not answers or finished.ended != "exit":
        return Called(finished=finished, error=finished.why)
    try:
        answer = foreign_json.read(answers[-1])
        if "error" in answer:
            return Called(finished=finished, error=str(answer["error"]))
        return Called(finished=finished, value=plain.decoded(answer["value"]))
    except (KeyError, TypeError, ValueError) as error:
        return Called(finished=finished, error=f"no answer: {error}")
