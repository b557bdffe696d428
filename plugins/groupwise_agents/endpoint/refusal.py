"""Refusal: the answer to a request that is not answered."""

from collections.abc import Mapping
from typing import Any


class Refusal(Exception):  # noqa: N818
    """A request that is not answered: HTTP status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    @property
    def body(self) -> Mapping[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


def invalid(message: str) -> Refusal:
    return Refusal(400, "invalid_request", message)


def over() -> Refusal:
    return Refusal(
        410,
        "episode_over",
        "this address belongs to no episode that is being played: each has an address of its own, "
        "until its end",
    )
