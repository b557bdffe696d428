"""Peer: one side of the channel between a program and tests; each asks, and answers meanwhile."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from groupwise_sandbox import crossing, frames, references
from groupwise_sandbox.confinement import CHANNEL

DEPTH = 50
"""How many questions of one side may wait for their answers: a call whose callback calls again."""
Request: TypeAlias = Mapping[str, Any]
Reply: TypeAlias = Mapping[str, Any]


class Peer:
    """Asks the other side, and answers what it asks before it replies."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self._answer, self._lock, self._depth = answer, threading.RLock(), 0

    def ask(self, request: Request) -> Reply:
        """The other side's reply. Raises RecursionError, before anything is sent."""
        with self._lock:
            if self._depth == DEPTH:
                raise RecursionError(f"more than {DEPTH} calls that wait for each other")
            self._depth += 1
            try:
                frames.write(CHANNEL, crossing.outgoing({"request": request}))
                while True:
                    message = frames.read(CHANNEL)
                    if "reply" in message:
                        reply: Reply = crossing.incoming(message)["reply"]
                        return reply
                    self.reply(message)
            finally:
                self._depth -= 1

    def reply(self, message: Mapping[str, Any]) -> None:
        """Answer a request of the other side."""
        try:
            reply = self._answer(crossing.incoming(message)["request"])
            answer = crossing.outgoing({"reply": reply})
        except (OSError, ValueError) as error:  # a folder is full, or too much has changed
            answer = {"reply": references.error_reply(error)}
        frames.write(CHANNEL, answer)

    def serve(self) -> None:
        """Answer requests until no more come."""
        while True:
            try:
                self.reply(frames.read(CHANNEL))
            except frames.EndedError:
                return
