"""Generation: requests of a step, as many as possible in flight, and their completions."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from groupwise.kit import terminal
from groupwise.kit.errors import UserError
from groupwise_llm.vllm.client import LateError, LostError
from groupwise_llm.vllm.completion import Completion
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.request import AT_ONCE, Request
from groupwise_llm.vllm.server import Server
from groupwise_llm.vllm.tags import Tags

ROUNDS = 3
"""Attempts to get all completions from the current weights."""


class Generation:
    """A context in which the requests are sent; at its end the rest is given up.

    tags: of the weights that may sample: those that all servers have when a request is sent, and
    later ones; ask: sends a request to a server; renew: sends the weights to a server that no
    longer has them, after a restart.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        fleet: Fleet,
        *,
        tags: Tags,
        ask: Callable[[Server, Request], list[Completion]],
        renew: Callable[[Server], None],
    ) -> None:
        self.requests, self.fleet, self.tags = requests, fleet, tags
        self.ask, self.renew = ask, renew
        self._threads = ThreadPoolExecutor(min(len(requests), AT_ONCE))
        self._answers: dict[Request, Future[list[Completion] | None]] = {}
        self._since: dict[Request, str] = {}

    def __enter__(self) -> Self:
        self._send(self.requests)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def completions(self, rows: Collection[int]) -> list[Completion]:
        """The completions of these prompts, in order, none sampled by older weights than those at
        its request."""
        requests = [request for request in self.requests if request.row in rows]
        stale = 0
        while True:
            answers = {request: self._answers[request].result() for request in requests}
            # Those of a lost server are sent to another one, which is no attempt.
            lost = [request for request, part in answers.items() if part is None]
            drawn = {request: part for request, part in answers.items() if part is not None}
            other = [
                request for request, part in drawn.items() if not self._is_right(request, part)
            ]
            if not (lost or other):
                return [completion for part in drawn.values() for completion in part]
            stale += bool(other)
            if stale == ROUNDS:
                raise UserError(
                    f"sampler: a vLLM server ({self.fleet.addresses}) draws with other weights "
                    f"than those that it was sent, after {ROUNDS} attempts: does another run use "
                    f"it, or does it restart?"
                )
            self.fleet.relieve(self.renew)
            self.fleet.each(self.renew)
            self._send([*lost, *other])

    def _send(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._since[request] = self.tags.last
            self._answers[request] = self._threads.submit(self._answer, request)

    def _answer(self, request: Request) -> list[Completion] | None:
        """The completions of a request; None if its server is lost.

        Those of a server that works but does not end are given up: another one would be as slow.
        """
        server = self.fleet.take(request)
        try:
            completions = self.ask(server, request)
            self.fleet.remember(server, request, completions)
            return completions
        except LostError as error:
            if isinstance(error, LateError) and server.answers():
                return self._given_up(request, error)
            self.fleet.lose(server, error, replaceable=True)
            return None
        finally:
            self.fleet.release(server, request)

    def _given_up(self, request: Request, error: LateError) -> list[Completion]:
        terminal.say(
            f"note: {error}: its {request.count} completions (seed {request.seed}) are given up, "
            f"as failed samples"
        )
        nothing = Completion(
            ids=[],
            log_probs=[],
            truncated=False,
            spans=[(self._since[request], 0)],
            failure=f"{error}",
        )
        return [nothing] * request.count

    def _is_right(self, request: Request, completions: Sequence[Completion]) -> bool:
        """Whether the right weights drew them; False also for no completions, from a server that
        does not know the weights."""
        tags, since = [own.tags for own in completions], self._since[request]
        return bool(tags) and all(self.tags.may_draw(own, since) for own in tags)
