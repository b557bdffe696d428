"""Session: the requests of one episode's agent, answered by its players."""

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from groupwise.environment import ContextRefused, Player, Reply
from groupwise.kit.errors import UserError
from groupwise_agents.endpoint.chat import answer
from groupwise_agents.endpoint.history import History
from groupwise_agents.endpoint.refusal import Refusal, over
from groupwise_agents.endpoint.request import Request

T = TypeVar("T")


class Session:
    """Answers the requests of an agent, one after the other and in the order in which they come.

    The order alone names the seed of each answer, so an agent that asks the same gets the same,
    however long it takes in between.

    players: by label, which is the name of the model in a request; keeps_drift: see `History`;
    answered: set once any request of the run was; from then on a request that a policy cannot take
    is the agent's fault, and refused, while before that it ends the run.

    key: in the address of its requests, and known to its agent alone; replies: so far; latest: the
    last one by the name that the client gives to a conversation, if it does (X-Session-ID);
    columns: numbers of the episode so far, None for those of calls where no tool was shown;
    ignored: parameters of requests that the run does not follow.
    """

    def __init__(
        self, players: Mapping[str, Player], *, keeps_drift: bool, answered: asyncio.Event
    ) -> None:
        self.players, self.answered = players, answered
        self.key = secrets.token_urlsafe(24)
        self.history = History(keeps_drift=keeps_drift)
        self.replies: list[Reply] = []
        self.latest: dict[str | None, Reply] = {}
        self.seconds = 0.0
        self.ignored: set[str] = set()
        self._waiting = deque[_Waiting]()
        self._changed = asyncio.Event()
        self._futures: dict[str, asyncio.Future[Any]] = {}  # the last one of each body
        self._over = self._shows_tools = False
        self._agent: asyncio.Future[Any] | None = None
        self._refused: ContextRefused | None = None

    @property
    def columns(self) -> dict[str, float | None]:
        calls = [call for reply in self.replies for call in reply.calls]
        may_call = self._shows_tools or bool(calls)
        return {
            "turns": len(self.replies),
            "calls": len(calls) if may_call else None,
            "call_errors": sum(call.fault is not None for call in calls) if may_call else None,
            "tool_seconds": self.seconds,
            "drifts": self.history.drifts,
        }

    async def ask(
        self, body: Any, *, again: bool = False, name: str | None = None
    ) -> Mapping[str, Any]:
        """The answer to the body of a request. Raises Refusal.

        again: whether the client repeats a request, since the answer took too long or was lost: it
        gets the answer to the last one with this body; name: of the conversation.
        """
        sent = json.dumps(body, sort_keys=True)
        if again and sent in self._futures:
            return await self._futures[sent]
        request = Request.of(body)
        if self._over:
            raise over()
        future = asyncio.get_running_loop().create_future()
        self._futures[sent] = future
        self._waiting.append(_Waiting(request, name, future))
        self._changed.set()
        return await future

    async def serve(self, agent: Awaitable[T]) -> T:
        """Answer requests until the agent is done; returns what it returned, or raises that.

        Raises ContextRefused if an agent raises because it was refused one, and what players raise.
        The agent is cancelled then.
        """
        self._agent = task = asyncio.ensure_future(agent)
        task.add_done_callback(lambda _: self._changed.set())
        try:
            while (waiting := await self._next(task)) is not None:
                await self._answer(waiting)
            if self._refused is not None and task.exception() is not None:
                raise self._refused
            return task.result()
        finally:
            await self.close()

    async def close(self) -> None:
        """Refuse requests from now on, and end the agent."""
        self._over = True
        for waiting in self._waiting:
            waiting.settle(over())
        if self._agent is not None:
            self._agent.cancel()
            await asyncio.wait({self._agent})

    async def _next(self, agent: "asyncio.Future[Any]") -> "_Waiting | None":
        """The next request; None when the agent is done."""
        began = time.monotonic()
        while not agent.done() and not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        self.seconds += time.monotonic() - began
        return None if agent.done() else self._waiting.popleft()

    async def _answer(self, waiting: "_Waiting") -> None:
        request = waiting.request
        self._refused = None
        self.ignored.update(request.ignored)
        self._shows_tools |= bool(request.tools)
        try:
            context = self.history.context(request.messages)
            player = self.players.get(request.model)
            if player is None:
                raise Refusal(
                    404,
                    "model_not_found",
                    f"there is no model {request.model!r}; expected {' or '.join(self.players)}",
                )
            reply = await player(context, limit=request.limit, tools=request.tools)
        except Refusal as refusal:
            waiting.settle(refusal)
        except ContextRefused as error:
            self._refused = error
            text = "no room is left for this context (policy.max_new_tokens)"
            waiting.settle(Refusal(400, "context_length_exceeded", text))
        except UserError as error:
            if not self.answered.is_set():
                waiting.settle(Refusal(500, "no_completion", str(error)))
                raise
            waiting.settle(Refusal(400, "unsupported_messages", str(error)))
        except BaseException as error:
            waiting.settle(Refusal(500, "no_completion", f"{type(error).__name__}: {error}"))
            raise
        else:
            message = self.history.record(context, reply)
            self.replies.append(reply)
            self.answered.set()
            self.latest[waiting.name] = reply
            waiting.settle(answer(len(self.replies), reply, message))


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A request that waits for its answer; name: of its conversation."""

    request: Request
    name: str | None
    answer: "asyncio.Future[Any]"

    def settle(self, answered: Any) -> None:
        if self.answer.done():
            return
        if isinstance(answered, Refusal):
            self.answer.set_exception(answered)
        else:
            self.answer.set_result(answered)
