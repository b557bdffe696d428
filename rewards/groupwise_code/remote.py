"""Remote: runs programs on a server of SandboxFusion's protocol; what is expected stays here.

POST /run_code {"code", "language", "stdin", "compile_timeout", "run_timeout", "memory_limit_MB"},
answered by {"status", "message", "compile_result", "run_result"}; a result is {"status",
"execution_time", "return_code", "stdout", "stderr"}. Source: bytedance/SandboxFusion 469de08,
sandbox/server/sandbox_api.py and sandbox/runners/types.py.
"""

import json
import ssl
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import httpx

from groupwise.kit import foreign_json
from groupwise.kit.errors import first_line
from groupwise_code.answer import Answer
from groupwise_code.machine import LEETCODE, Left
from groupwise_code.problem import Calling, Case, Printing, Testing
from groupwise_sandbox import plain
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import Ended, Finished, SandboxError
from groupwise_sandbox.sandbox import Called, Tested

NAMES = {"python": "python", "cpp": "cpp", "javascript": "nodejs"}
"""The server's names of our languages."""
COMPILING = 10.0
"""Seconds in which a program must be compiled."""
MARGIN = 10.0
"""Seconds beside a program's own in which the server must answer: requests wait there, too."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds before a failed request is repeated, doubled each time."""
LARGEST = 4 << 20
"""Most bytes of an answer."""
MARK = "answer of the call: "
_PASSING = {408, 409, 425, 429}


class Remote:
    """A server that runs programs. Its methods may be called in any thread.

    Addresses of https are reached through the proxy of the environment, if there is one, others
    directly: they are machines of the user's own.
    """

    def __init__(self, server: str, limits: Limits, *, parallel: int, retries: int) -> None:
        """parallel: requests at the same time."""
        self._address = f"{server.rstrip('/').removesuffix('/run_code')}/run_code"
        self._limits, self._retries, self.parallel = limits, retries, parallel
        is_remote = server.startswith("https:")
        self._http = httpx.Client(
            # Nothing is decompressed: a kilobyte may become a gigabyte.
            headers={"Accept-Encoding": "identity"},
            trust_env=is_remote,
            verify=ssl.create_default_context() if is_remote else False,
            limits=httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel),
        )

    def refusal(self, language: str) -> str | None:
        """Why programs of a language cannot be run on a server, or None."""
        return None if language in NAMES else f"a server runs no programs in {language!r}"

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
        return self._finished(
            {
                "code": program.code,
                "language": NAMES[program.language],
                "stdin": stdin,
                "compile_timeout": COMPILING,
                "run_timeout": self._limits.seconds,
                "memory_limit_MB": memory,  # node reserves more than it uses
            },
            left,
        )

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

    def close(self) -> None:
        """End the connections."""
        self._http.close()

    def _finished(self, body: Mapping[str, Any], left: Left) -> Finished:
        wait = FIRST_WAIT
        for attempt in range(self._retries + 1):
            try:
                return _finished(self._exchange(body, left))
            except _PassingError as error:
                if attempt == self._retries or left() <= wait:
                    raise SandboxError(f"the server at {self._shown} {error}") from error
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError

    def _exchange(self, body: Mapping[str, Any], left: Left) -> Any:
        """The server's answer, or None for one that is too long."""
        seconds = min(left(), COMPILING + self._limits.seconds + MARGIN)
        until, content = time.monotonic() + seconds, bytearray()
        try:
            with self._http.stream(
                "POST", self._address, json=body, timeout=max(0.1, seconds)
            ) as answer:
                for part in answer.iter_raw():
                    content += part
                    if len(content) > LARGEST:
                        return None
                    if time.monotonic() > until:
                        raise _PassingError(f"did not answer within {seconds:.0f} s")
        except httpx.TimeoutException as error:
            raise _PassingError(f"did not answer within {seconds:.0f} s") from error
        except httpx.HTTPError as error:
            raise _PassingError(f"cannot be reached ({first_line(error)})") from error
        if answer.status_code in _PASSING or answer.status_code >= 500:
            raise _PassingError(f"failed with status {answer.status_code}")
        if answer.status_code != 200:
            raise SandboxError(
                f"the server at {self._shown} refuses with status {answer.status_code}; is it one "
                f"of SandboxFusion's protocol, and `server` its address up to /run_code?"
            )
        try:
            return foreign_json.read(content)
        except ValueError as error:
            raise _PassingError("answered with something else than JSON") from error

    @property
    def _shown(self) -> str:
        """The address without a user and a password."""
        parts = urlsplit(self._address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class _PassingError(Exception):
    """A request failed in a way that may pass; a phrase to follow the server's name."""


def _finished(answer: Any) -> Finished:
    """How a program ended. Raises _PassingError where the server failed."""
    if answer is None:
        return Finished(ended="output", status=0, stdout=b"", stderr="", seconds=0.0)
    if not isinstance(answer, dict) or answer.get("status") not in ("Success", "Failed"):
        words = answer.get("message") if isinstance(answer, dict) else None
        raise _PassingError(f"failed itself: {words or 'no status'!s:.200}")
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
    raise _PassingError("answered without a result")


def _ending(result: Mapping[str, Any]) -> tuple[Ended, int]:
    if result.get("status") == "TimeLimitExceeded":
        return "time", 1
    status = result.get("return_code")
    if result.get("status") != "Finished" or not isinstance(status, int):
        raise _PassingError("answered with a result that is not finished")
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
