"""Kimina: what a server of its protocol answers, as recorded forms, for `tests.code.fusion`.

Lean itself is not needed: each answer is of the form that Lean's REPL gives to such a file.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Reply = Callable[[dict[str, Any]], dict[str, Any]]


def message(severity: str, data: str) -> dict[str, Any]:
    position = {"line": 1, "column": 0}
    return {"severity": severity, "pos": position, "endPos": position, "data": data}


STATED = message("warning", "declaration uses 'sorry'")
"""What the row's theorem, stated without a proof, gives in each file."""


def answering(
    axioms: Sequence[str] | None, messages: Sequence[Mapping[str, Any]] = (), **result: Any
) -> Reply:
    """A server whose Lean prints these axioms of what is asked; None: it does not come to that."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        (code,) = request["codes"]
        name = code["proof"].rpartition("#print axioms ")[2].strip()
        rests = f"depends on axioms: [{', '.join(axioms or ())}]"
        words = rests if axioms else "does not depend on any axioms"
        own = [] if axioms is None else [message("info", f"'{name}' {words}")]
        response = {"env": 0, "time": 0.1, "messages": [STATED, *messages, *own]}
        return {"results": [{"custom_id": code["custom_id"], "response": response, **result}]}

    return answer
