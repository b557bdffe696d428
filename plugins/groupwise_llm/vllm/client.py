"""Client: HTTP requests to one server, repeated for a while when they fail."""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import httpx

from groupwise.kit import foreign_json, terminal
from groupwise.kit.errors import UserError, first_line
from groupwise_llm.vllm.settings import Settings

FIRST_WAIT, LONGEST_WAIT = 0.25, 10.0
"""Seconds before a failed request is repeated: the first wait, doubled each time up to the
longest."""
CONNECTING = 10.0
"""Seconds in which a server must accept a connection."""
HEALTH = 2.0
"""Seconds in which a server must say that it works."""
LARGEST = 2**24
"""Most bytes of an answer without completions."""
LOAD_ADAPTER, UNLOAD_ADAPTER = "v1/load_lora_adapter", "v1/unload_lora_adapter"
RESET_FEATURES = "reset_encoder_cache"
PLAIN = {LOAD_ADAPTER, UNLOAD_ADAPTER, RESET_FEATURES}
"""Paths whose answer is a sentence or nothing, and no JSON."""


class RefusedError(Exception):
    """The server refused the request, or failed at one that must not be repeated."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class LostError(UserError):
    """The server cannot be reached, fails, or takes too long; another one may do the work.

    waited: whether the request was repeated, or the server took its time.
    """

    def __init__(self, message: str, *, waited: bool = True) -> None:
        super().__init__(message)
        self.waited = waited


class LateError(LostError):
    """An answer takes longer than `timeout`."""


class Client:
    """One server's HTTP client; url: http://host:port, without a path.

    waits: whether a failed request is repeated for `patience` seconds, or else given up at once;
    is_replaced: asked while it waits whether another server does the work, so that it can give up.

    It uses no proxy and no password of the environment (HTTP_PROXY, .netrc): servers are machines
    of the user's own, and the API key is for them alone.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        self.url, self.settings = url, settings
        key = settings.api_key
        self._headers = {"Accept-Encoding": "identity"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        # Certificates take tens of milliseconds to load, so once.
        self._tls = ssl.create_default_context() if url.startswith("https:") else False
        self.waits = True
        self.is_replaced: Callable[[], bool] = lambda: False
        self._lock, self._noted = threading.Lock(), False

    def get(self, path: str, **query: Any) -> Any:
        return self._answer("GET", path, params=query)

    def post(
        self,
        path: str,
        body: Any = None,
        *,
        repeats: bool = True,
        largest: int = LARGEST,
        **query: Any,
    ) -> Any:
        """repeats: whether to repeat the request after a server error (status 5xx); largest: most
        bytes of the answer."""
        return self._answer("POST", path, repeats=repeats, largest=largest, params=query, json=body)

    def answers(self) -> bool:
        """Whether the server can be reached now, and says within `HEALTH` seconds that it works."""
        try:
            status, _ = self._received("GET", "health", LARGEST, {}, seconds=HEALTH)
        except (httpx.HTTPError, TimeoutError, _FailedError):
            return False
        return 200 <= status < 300

    def _answer(
        self,
        method: str,
        path: str,
        *,
        repeats: bool = True,
        largest: int = LARGEST,
        **request: Any,
    ) -> Any:
        """The server's answer as JSON.

        Raises RefusedError; LostError where requests fail for `patience` seconds; LateError where
        an answer takes longer than `timeout` as a whole, which is not repeated: the server may
        still be at work.
        """
        waits = self.waits
        patience = self.settings.patience if waits else 0.0
        deadline, wait = None, FIRST_WAIT
        while True:
            try:
                answer = self._once(method, path, largest, request)
                self._noted = False
                return answer
            except (httpx.HTTPError, ValueError, TimeoutError, _FailedError) as error:
                if isinstance(error, _FailedError) and not repeats:
                    raise RefusedError(500, str(error)) from error
                now = time.monotonic()
                first, deadline = deadline is None, deadline or now + patience
                late = isinstance(error, TimeoutError)
                if now + wait > deadline or late or (waits and self.is_replaced()):
                    problem = self._problem(error, waits=waits)
                    message = f"sampler: the vLLM server at {self.url} {problem}"
                    raise (LateError if late else LostError)(
                        message, waited=waits or late
                    ) from error
                if first:
                    self._note_waiting(error)
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _once(self, method: str, path: str, largest: int, request: Mapping[str, Any]) -> Any:
        """Raises TimeoutError, httpx.HTTPError, ValueError where an answer is not JSON."""
        seconds = self.settings.timeout
        status, content = self._received(method, path, largest, request, seconds=seconds)
        if status >= 500:
            raise _FailedError(_reason(status, content))
        if status >= 300:  # no redirection is followed
            raise RefusedError(status, _reason(status, content))
        return None if path in PLAIN else foreign_json.read(content)

    def _received(
        self, method: str, path: str, largest: int, request: Mapping[str, Any], *, seconds: float
    ) -> tuple[int, bytes]:
        """Status and content of an answer."""
        exchange = self._exchange(method, path, largest, request, seconds=seconds)
        return asyncio.run_coroutine_threadsafe(exchange, _loop()).result()

    async def _exchange(
        self, method: str, path: str, largest: int, request: Mapping[str, Any], *, seconds: float
    ) -> tuple[int, bytes]:
        """Status and content of an answer, in so many seconds from the first byte sent to the last
        one received, so that a server that sends a byte now and then holds nobody.

        Nothing is decompressed: a kilobyte may become a gigabyte in one step.
        """
        client = httpx.AsyncClient(
            trust_env=False,
            verify=self._tls,
            timeout=httpx.Timeout(None, connect=CONNECTING),
        )
        async with (
            asyncio.timeout(seconds),
            client,
            client.stream(method, f"{self.url}/{path}", headers=self._headers, **request) as answer,
        ):
            content = bytearray()
            async for part in answer.aiter_raw():
                content += part
                if len(content) > largest:
                    raise _FailedError(f"an answer of more than {largest / 2**20:,.0f} MiB")
            return answer.status_code, bytes(content)

    def _note_waiting(self, error: Exception) -> None:
        """Print once, whatever number of requests wait, that the run waits and why."""
        with self._lock:
            noted, self._noted = self._noted, True
        if not noted:
            why = f"fails: {error}" if isinstance(error, _FailedError) else "cannot be reached"
            note = (
                f"note: the vLLM server at {self.url} {why}; requests are repeated for "
                f"{self.settings.patience:g} s (sampler.patience)"
            )
            terminal.say(note)

    def _problem(self, error: Exception, *, waits: bool) -> str:
        settings = self.settings
        if isinstance(error, TimeoutError):
            return f"took longer than {settings.timeout:g} s to answer (sampler.timeout)"
        repeated = f"the request was repeated for {settings.patience:g} s (sampler.patience)"
        retried = f"; {repeated}" if waits else ""
        if isinstance(error, _FailedError):
            return f"fails: {error}{retried}. Look into its own log"
        if isinstance(error, ValueError):
            return f"does not answer with JSON; is it vLLM?{retried}"
        if isinstance(error, httpx.TransportError):
            return f"cannot be reached{retried}. Is it running, and is the address right?"
        return f"cannot be used: {first_line(error)}{retried}"


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own, for the requests of all threads of this process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="vllm requests", daemon=True).start()
    return loop


class _FailedError(Exception):
    """The server answered with an error of its own (status 5xx), or with too much."""


def _reason(status: int, content: bytes) -> str:
    """The message in an error answer."""
    try:
        parsed = foreign_json.read(content)
    except ValueError:
        return content.decode(errors="replace").strip()[:500] or f"status {status}"
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return str(message or parsed)[:500]
