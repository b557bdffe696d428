"""Exchange: what a run says to programs that are called, and passes on between them and tests."""

from typing import Any

from groupwise_sandbox.process import Process


def calls(code: str, opening: str = "", *, refers: bool) -> dict[str, Any]:
    """The payload of a program that is called; refers: whether values may be references."""
    return {"mode": "calls", "code": code, "opening": opening, "refers": refers}


def defined(process: Process) -> dict[str, Any] | None:
    """Wait until the code has run; what went wrong, or None."""
    message = process.message()
    if not isinstance(message, dict):
        return {"error": "it ended before it could be called"}
    # Of what the program says nothing else may be taken: it stands where a verdict would.
    return {"error": str(message["error"])} if "error" in message else None


def answered(process: Process, request: dict[str, Any]) -> dict[str, Any]:
    """A program's reply to a request."""
    process.send({"request": request})
    answer = process.message()
    reply = answer.get("reply") if isinstance(answer, dict) else None
    return reply if isinstance(reply, dict) else _NO_ANSWER


def passed_on(tester: Process, program: Process) -> dict[str, Any]:
    """Pass on what the tests and the program ask of each other, in turn; the tests' verdict."""
    while True:
        message = tester.message()
        if not isinstance(message, dict):
            return {"error": "the tests ended without a verdict"}
        if "request" not in message and "reply" not in message:
            return message
        program.send(message)
        tester.send(_checked(program.message()))


def _checked(message: Any) -> dict[str, Any]:
    """What a program says to the tests: a reply, or a call of a callback. The tests' process reads
    the values and files in it."""
    files = {"files": message["files"]} if isinstance(message, dict) and "files" in message else {}
    match message:
        case {"reply": {"error": error, **rest}}:
            return {"reply": {"error": str(error), "kinds": rest.get("kinds")}, **files}
        case {"reply": {"value": value, **rest}}:
            return {"reply": {"value": value, "args": rest.get("args")}, **files}
        case {"request": {"callback": int(number), "args": [*args], "named": {**named}}}:
            return {"request": {"callback": number, "args": args, "named": named}, **files}
    return {"reply": _NO_ANSWER}


_NO_ANSWER = {"error": "it ended without an answer"}
