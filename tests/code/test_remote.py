"""`code_tests` with a server: the same verdicts, and what is expected never leaves this machine."""

import json
import time
from typing import Any

import pytest
from tests.code.fusion import Fusion, executed
from tests.code.test_code_tests import CALLED, CHEATS, PRINTED, PRINTS, RIGHT, WRONG

from groupwise.rewards import SampleErrors
from groupwise.rewards.deadline import ending_in
from groupwise_code.problem import FormatError
from groupwise_code.reward import CodeTests
from groupwise_sandbox import service

SECRET = 31337
CALLS = {"test_cases": [{"fn_name": "add", "input": [1, SECRET - 1], "output": SECRET}]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRST_WAIT", 0.01)


def values(fusion: Fusion, programs: list[str], row: dict[str, Any], **options: Any) -> Any:
    options = {"timeout": 30, **options}  # of wall time, and machines may be busy
    reward = CodeTests(CodeTests.Config(server=fusion.address, **options))
    columns = {name: [column] * len(programs) for name, column in row.items()}
    texts = [f"```python\n{each}\n```" for each in programs]
    try:
        return reward([""] * len(programs), texts, **columns)
    finally:
        reward.close()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["open-r1", "apps by lines", "livecodebench", "prime-rl"])
def test_verdicts_on_calls(name: str) -> None:
    asynchronous = RIGHT.replace("def", "async def")
    noisy = f"print('hello')\n{RIGHT}"
    with Fusion() as fusion:
        programs = [RIGHT, WRONG, asynchronous, noisy, "1 / 0", "import sys; sys.exit(0)"]
        assert values(fusion, programs, CALLED[name]) == [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
        assert {*fusion.paths} == {"/run_code"}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["open-r1", "codeforces"])
def test_verdicts_on_outputs(name: str) -> None:
    with Fusion() as fusion:
        assert values(fusion, [PRINTS, "print(4)", "1 / 0"], PRINTED[name]) == [1.0, 0.0, 0.0]
        assert values(fusion, ["while True: pass"], PRINTED[name], timeout=0.5) == [0.0]


@pytest.mark.slow
def test_a_cheat_earns_nothing_on_a_server() -> None:
    cheats = [code for name, code in CHEATS.items() if name != "no end"]
    mark = "import sys\nprint('answer of the call: {\"value\": true}')\nsys.exit(0)\n"
    with Fusion() as fusion:
        assert {*values(fusion, [*cheats, mark], CALLS)} == {0.0}
        assert values(fusion, [f"def add(a, b): return a + b{' ' * 9}"], CALLS) == [1.0]
        assert str(SECRET) not in json.dumps(fusion.requests)


def test_what_would_send_what_is_expected_is_refused() -> None:
    reward = CodeTests(CodeTests.Config(server="http://127.0.0.1:1"))
    with pytest.raises(FormatError, match="run on this machine alone: leave `server` out"):
        reward.check_row(CALLED["mbpp"])
    with pytest.raises(FormatError, match="checker is run on this machine alone"):
        reward.check_row({**PRINTED["codeforces"], "checker": "print(1)"})
    with pytest.raises(FormatError, match="a server runs no programs in 'c'"):
        reward.check_row({**PRINTED["codeforces"], "language": "C"})
    reward.close()


def result(stage: str = "run_result", **fields: Any) -> dict[str, Any]:
    return {"status": "Failed", "message": "", stage: {"status": "Finished", **fields}}


@pytest.mark.parametrize(
    "reply",
    [
        result("compile_result", return_code=1, stderr="error: expected ';'"),
        result(return_code=137, stdout="3"),
        result(return_code=0, stdout=None),
        {"status": "Failed", "compile_result": {"status": "TimeLimitExceeded"}},
        {"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "3"}}
        | {"message": "x" * service.LARGEST},
    ],
    ids=lambda reply: str(reply)[:60],
)
def test_what_a_program_causes_is_0(reply: Any) -> None:
    with Fusion(lambda _: reply) as fusion:
        assert values(fusion, [PRINTS], PRINTED["codeforces"]) == [0.0]
        assert len(fusion.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        500,
        429,
        404,
        b"no JSON",
        {},
        [],
        {"status": "SandboxError", "message": "no room"},
        {"status": "Success", "message": "", "run_result": None},
        result(return_code=None),
        {"status": "Failed", "run_result": {"status": "Error", "stderr": "no such user"}},
    ],
    ids=str,
)
def test_a_fault_of_the_server_is_a_failed_sample(reply: Any) -> None:
    with Fusion(lambda _: reply) as fusion, pytest.raises(SampleErrors) as raised:
        values(fusion, [PRINTS], PRINTED["codeforces"], retries=1)
    assert "the server at http://127.0.0.1" in raised.value.errors[0]
    assert len(fusion.requests) == (1 if reply == 404 else 2)


def test_a_request_that_failed_is_repeated() -> None:
    replies = [503, b"", {"status": "SandboxError", "message": ""}]
    with Fusion(lambda body: replies.pop(0) if replies else executed(body)) as fusion:
        assert values(fusion, [PRINTS], PRINTED["codeforces"]) == [1.0]
        assert len(fusion.requests) == 4


def test_requests_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: dict[str, Any]) -> Any:
        time.sleep(0.1)
        return result(return_code=0, stdout="3")

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # which nobody answers
    with Fusion(slow) as fusion:
        row = PRINTED["codeforces"]
        assert values(fusion, [PRINTS] * 12, row, parallel=3) == [1.0] * 12
        assert 1 < fusion.most <= 3
        began = time.monotonic()
        with ending_in(0.5), pytest.raises(SampleErrors) as raised:
            values(fusion, [PRINTS] * 400, row, parallel=2)
    assert time.monotonic() - began < 8  # all of them take 20
    assert {1.0} < {*raised.value.values}


def test_a_server_that_nobody_answers_at_is_named() -> None:
    reward = CodeTests(CodeTests.Config(server="http://user:word@127.0.0.1:1", retries=0))
    columns = {name: [column] for name, column in PRINTED["codeforces"].items()}
    with pytest.raises(SampleErrors) as raised:
        reward([""], [PRINTS], **columns)
    reward.close()
    assert "the server at http://127.0.0.1:1/run_code cannot be reached" in raised.value.errors[0]
    assert "word" not in raised.value.errors[0]
