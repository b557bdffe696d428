"""Server: OpenAI's chat completions on this machine, for the episodes that are being played."""

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from groupwise.environment import Player
from groupwise.kit import foreign_json
from groupwise_agents.endpoint.chat import models, streamed
from groupwise_agents.endpoint.refusal import Refusal, invalid, over
from groupwise_agents.endpoint.session import Session

HOST = "127.0.0.1"
"""Not reachable from other machines."""
RETRIES = "x-stainless-retry-count"
"""The header in which OpenAI's clients count how often they have repeated a request."""

CONVERSATION = "x-session-id"
"""The header in which some clients, as that of verifiers, name a conversation."""


class ASCII(JSONResponse):
    """JSON with escapes, which has any text, also half of a surrogate pair."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


class Endpoint:
    """A server in the event loop of the episodes, with an address for each episode.

    An address has a key that is drawn for its episode, so that no program on this machine can
    answer, or ask, in the place of an agent without having been given it.

    common_url: an address for clients that all episodes share, which name their conversations (see
    `name`); it has a key of its own.
    """

    def __init__(self) -> None:
        self._key = secrets.token_urlsafe(24)
        self._sessions: dict[str, Session] = {}
        self._answered = asyncio.Event()
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to serve in the running event loop, unless it does."""
        if self._server is not None:
            return
        own = socket.socket()
        own.bind((HOST, 0))  # a free port
        own.listen()  # requests wait until the server takes them
        _without_proxy()
        self._port = own.getsockname()[1]
        config = uvicorn.Config(
            self._app(),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=24 * 3600,  # of connections that wait while others are answered
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        serving = self._server.serve(sockets=[own])
        self._serving = asyncio.create_task(serving, context=Context())  # of no episode

    async def close(self) -> None:
        """End the agents that still run, and the server."""
        for session in [*self._sessions.values()]:
            await session.close()
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = self._serving = None

    @contextmanager
    def session(
        self, players: Mapping[str, Player], *, keeps_drift: bool
    ) -> Iterator[tuple[Session, str]]:
        """The session of an episode and its base URL, which is valid within this context."""
        session = Session(players, keeps_drift=keeps_drift, answered=self._answered)
        self._sessions[session.key] = session
        try:
            yield session, self._url(session.key)
        finally:
            for name in [name for name, own in self._sessions.items() if own is session]:
                del self._sessions[name]

    def name(self, key: str, conversation: str) -> None:
        """From now on, requests to `common_url` that name this conversation (X-Session-ID) belong
        to the session with this key."""
        self._sessions[conversation] = self._sessions[key]

    @property
    def common_url(self) -> str:
        return self._url(self._key)

    def _url(self, key: str) -> str:
        return f"http://{HOST}:{self._port}/{key}/v1"

    def _app(self) -> Starlette:
        async def complete(request: Request) -> Response:
            session = self._session(request)
            try:
                body = foreign_json.read(await request.body())
            except ValueError as error:
                raise invalid(f"the body is not JSON: {error}") from error
            again = request.headers.get(RETRIES, "0") != "0"
            name = request.headers.get(CONVERSATION)
            answered = await session.ask(body, again=again, name=name)
            if body.get("stream"):
                return Response(streamed(answered), media_type="text/event-stream")
            return ASCII(answered)

        async def listed(request: Request) -> Response:
            return ASCII(models([*self._session(request).players]))

        return Starlette(
            routes=[
                Route("/{key}/v1/chat/completions", complete, methods=["POST"]),
                Route("/{key}/v1/models", listed, methods=["GET"]),
            ],
            exception_handlers={Refusal: _refused, HTTPException: _not_served},
        )

    def _session(self, request: Request) -> Session:
        key = request.path_params["key"]
        if key == self._key:
            key = request.headers.get(CONVERSATION, "")
        session = self._sessions.get(key)
        if session is None:
            raise over()
        return session


def _without_proxy() -> None:
    """Let the clients of this process, and of those that it starts, reach this machine's own
    address directly: the proxy of the environment would receive every key and conversation."""
    names = ("no_proxy", "NO_PROXY")
    hosts = [host for name in names for host in os.environ.get(name, "").split(",")]
    value = ",".join(dict.fromkeys([*filter(None, map(str.strip, hosts)), HOST]))
    os.environ.update(dict.fromkeys(names, value))


async def _refused(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    # The same request would be refused again.
    return ASCII(refusal.body, refusal.status, headers={"x-should-retry": "false"})


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path.partition("/v1")[2] or "/"
    text = f"{request.method} {path} is not served here, but POST /chat/completions, GET /models"
    return await _refused(request, Refusal(error.status_code, "not_served", text))
