"""Client: requests to a chat completions server, in their limits, and repeated when they fail."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import Any

import httpx
from pydantic import SecretStr

from groupwise.kit import foreign_json, secrets
from groupwise.kit.errors import UserError, first_line
from groupwise_judge.form import UnreadableError
from groupwise_judge.messages import as_sent
from groupwise_judge.settings import ServerSettings
from groupwise_judge.usage import Usage

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds before a failed request is repeated: doubled each time up to the longest, which is also
the most that a server's Retry-After can demand."""
CONNECTING = 10.0
"""Seconds in which a server must accept a connection."""
LARGEST = 2**22
"""Most bytes of an answer."""
PASSING = {408, 409, 425, 429}
"""Statuses below 500 that may pass."""
REJECTED = {400, 413, 422}
"""Statuses that concern the request: it is too long, or has a field that the server lacks."""


class JudgeError(UserError):
    """The server cannot be used with these settings: a wrong key, model or address."""


class RejectedError(UnreadableError):
    """The server rejects this request, but perhaps not others."""

    def __init__(self, reason: str) -> None:
        super().__init__("refused", reason)


class Client:
    """The HTTP client of one judge. Addresses of https are reached through the proxy of the
    environment, if there is one, others directly: they are machines of the user's own."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        key = settings.api_key
        authorization = {} if key is None else {"Authorization": _bearer(key)}
        is_remote = settings.server.startswith("https:")
        self._options: dict[str, Any] = {
            # Nothing is decompressed: a kilobyte may become a gigabyte.
            "headers": {"Accept-Encoding": "identity", **authorization},
            "timeout": httpx.Timeout(None, connect=CONNECTING),
            "trust_env": is_remote,
            # Certificates take tens of milliseconds to load, so once.
            "verify": ssl.create_default_context() if is_remote else False,
        }
        rate, processes = settings.requests_per_minute, int(os.environ.get("WORLD_SIZE", "1"))
        self._interval = 60 * processes / rate if rate else 0.0
        self._next = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._users = 0

    def check(self) -> None:
        """Raise JudgeError if the server cannot be reached, or refuses the key."""
        try:
            with httpx.Client(**self._options | {"timeout": CONNECTING}) as client:
                status = client.get(f"{self.settings.server}/models").status_code
        except httpx.HTTPError as error:
            raise JudgeError(
                f"the judge at {self.settings.address} {_unreached(error)}; is it running, and "
                f"is the address right?"
            ) from error
        if status in (401, 403):
            raise JudgeError(self._refusal(status, ""))

    async def complete(self, body: Mapping[str, Any], usage: Usage) -> dict[str, Any]:
        """The server's answer to a request.

        Raises JudgeError; RejectedError; UnreadableError of the kind "unanswered" where the request
        failed as often as it may.
        """
        async with self._connected() as http:
            return await self._repeated(http, body, usage)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[httpx.AsyncClient]:
        """The connections, which all requests in flight share; the last of them closes them.

        Connections and the semaphore belong to one event loop, and a run may begin another.
        """
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._users = asyncio.get_running_loop(), 0
            self._slots = asyncio.Semaphore(self.settings.concurrency)
        if not self._users:
            most = self.settings.concurrency
            limits = httpx.Limits(max_connections=most, max_keepalive_connections=most)
            self._http = httpx.AsyncClient(**self._options, limits=limits)
        self._users += 1
        http = self._http
        try:
            yield http
        finally:
            self._users -= 1
            if not self._users:
                await http.aclose()

    async def _repeated(
        self, http: httpx.AsyncClient, body: Mapping[str, Any], usage: Usage
    ) -> dict[str, Any]:
        wait, retries = FIRST_WAIT, self.settings.retries
        for attempt in range(retries + 1):
            try:
                return await self._once(http, body, usage)
            except _PassingError as error:
                if attempt == retries:
                    reason = (
                        f"got no answer from the judge at {self.settings.address}, which {error}"
                    )
                    raise UnreadableError("unanswered", reason) from error
                pause = min(max(wait, error.retry_after), LONGEST_WAIT)
                if error.retry_after:  # the server is busy: other requests wait, too
                    self._next = max(self._next, monotonic() + pause)
            usage.retries += 1
            await asyncio.sleep(pause)
            wait *= 2
        raise AssertionError

    async def _once(
        self, http: httpx.AsyncClient, body: Mapping[str, Any], usage: Usage
    ) -> dict[str, Any]:
        async with self._slots:
            await self._turn()
            usage.requests += 1
            # Pictures are encoded before the request's time begins.
            sent = {**body, "messages": as_sent(body["messages"])}
            began = monotonic()
            try:
                async with asyncio.timeout(self.settings.timeout):
                    status, headers, content = await self._exchange(http, sent)
            except TimeoutError as error:
                late = f"did not answer within {self.settings.timeout:g} s (`timeout`)"
                raise _PassingError(late) from error
            except httpx.HTTPError as error:
                raise _PassingError(_unreached(error)) from error
            usage.seconds += monotonic() - began
            usage.answered += 1
        return self._checked(status, headers, content)

    async def _turn(self) -> None:
        """Wait until the limit of requests a minute permits another one."""
        now = monotonic()
        at = max(now, self._next)
        self._next = at + self._interval
        await asyncio.sleep(at - now)

    async def _exchange(
        self, http: httpx.AsyncClient, body: Mapping[str, Any]
    ) -> tuple[int, httpx.Headers, bytes]:
        address = f"{self.settings.server}/chat/completions"
        async with http.stream("POST", address, json=body) as answer:
            content = bytearray()
            async for part in answer.aiter_raw():
                content += part
                if len(content) > LARGEST:
                    raise _PassingError(f"sent an answer of more than {LARGEST >> 20} MiB")
            return answer.status_code, answer.headers, bytes(content)

    def _checked(self, status: int, headers: httpx.Headers, content: bytes) -> dict[str, Any]:
        """The answer as JSON, or the error that its status means."""
        reason = "" if status == 200 else _reason(content)
        if status in PASSING or status >= 500:
            raise _PassingError(f"failed with status {status}{reason}", _retry_after(headers))
        if status in REJECTED:
            raise RejectedError(f"was rejected by its server with status {status}{reason}")
        if status != 200:
            raise JudgeError(self._refusal(status, reason))
        try:
            answer = foreign_json.read(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _PassingError("answered with something else than JSON")
        return answer

    def _refusal(self, status: int, reason: str) -> str:
        hints = {
            401: "set `api_key`",
            403: "is the `api_key` right, and may it use this model?",
            404: f"is {self.settings.model!r} the name of its `model`, and `server` its address up "
            f"to /v1?",
        }
        hint = hints.get(status, "is `server` the address of an OpenAI-compatible server?")
        return f"the judge at {self.settings.address} refuses (status {status}{reason}): {hint}"


class _PassingError(Exception):
    """A request failed in a way that may pass; a phrase to follow the server's name."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def _bearer(key: SecretStr) -> str:
    """The header with a key; white space around it, as of a file's last line, falls away. Raises
    JudgeError, without the key, if no header can contain it."""
    value = key.get_secret_value().strip()
    if not value or not value.isascii() or not value.isprintable():
        raise JudgeError("the judge's `api_key` is empty, or has characters that no key has")
    return f"Bearer {value}"


def _unreached(error: Exception) -> str:
    return f"cannot be reached ({first_line(error)})"


def _reason(content: bytes) -> str:
    """What a server says about an error, shortened, in brackets; "" if it says nothing."""
    text = content.decode("utf-8", "replace")
    try:
        error = foreign_json.read(text)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        pass
    text = " ".join(str(text).split())
    return f": {secrets.redacted(text):.200}" if text else ""


def _retry_after(headers: httpx.Headers) -> float:
    """The seconds that the server asks to wait; 0 if it says nothing that can be read."""
    value = headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (TypeError, ValueError):
        return 0.0
