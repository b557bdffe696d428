"""Service: a server that runs what a model wrote, asked by POST with JSON in their limits."""

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from groupwise.kit import foreign_json
from groupwise.kit.errors import first_line
from groupwise_sandbox.process import SandboxError

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds before a failed request is repeated, doubled each time."""
LARGEST = 4 << 20
"""Most bytes of an answer."""
_PASSING = {408, 409, 425, 429}
Given = TypeVar("Given")


class PassingError(Exception):
    """A request failed in a way that may pass; a phrase to follow the server's name."""


class Service:
    """One address. Its methods may be called in any thread.

    Addresses of https are reached through the proxy of the environment, if there is one, others
    directly: they are machines of the user's own.
    """

    def __init__(
        self, address: str, *, parallel: int, retries: int, protocol: str, key: str | None = None
    ) -> None:
        """parallel: requests at the same time; protocol: whose it is, and what `server` is to be,
        for a message; key: sent as a bearer's."""
        self._address, self._retries, self._protocol = address, retries, protocol
        is_remote = address.startswith("https:")
        authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(
            # Nothing is decompressed: a kilobyte may become a gigabyte.
            headers={"Accept-Encoding": "identity", **authorization},
            trust_env=is_remote,
            verify=ssl.create_default_context() if is_remote else False,
            limits=httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel),
        )

    def ask(
        self,
        body: Mapping[str, Any],
        read: Callable[[Any], Given],
        *,
        seconds: float,
        left: Callable[[], float],
    ) -> Given:
        """What `read` makes of the server's answer, or of None for one that is too long.

        read: may raise PassingError, upon which the request is repeated.
        seconds: in which the server must answer; left: those of the reward's call.

        Raises SandboxError for the server's faults.
        """
        wait = FIRST_WAIT
        for attempt in range(self._retries + 1):
            try:
                return read(self._exchange(body, min(left(), seconds)))
            except PassingError as error:
                if attempt == self._retries or left() <= wait:
                    raise SandboxError(f"the server at {self._shown} {error}") from error
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError

    def close(self) -> None:
        """End the connections."""
        self._http.close()

    def _exchange(self, body: Mapping[str, Any], seconds: float) -> Any:
        """The server's answer, or None for one that is too long."""
        until, content = time.monotonic() + seconds, bytearray()
        try:
            with self._http.stream(
                "POST", self._address, json=body, timeout=max(0.1, seconds)
            ) as answer:
                for part in answer.iter_raw():
                    content += part
                    if len(content) > LARGEST:
                        return None
                    if time.monotonic() > until:
                        raise PassingError(f"did not answer within {seconds:.0f} s")
        except httpx.TimeoutException as error:
            raise PassingError(f"did not answer within {seconds:.0f} s") from error
        except httpx.HTTPError as error:
            raise PassingError(f"cannot be reached ({first_line(error)})") from error
        if answer.status_code in _PASSING or answer.status_code >= 500:
            raise PassingError(f"failed with status {answer.status_code}")
        if answer.status_code != 200:
            raise SandboxError(
                f"the server at {self._shown} refuses with status {answer.status_code}; is it one "
                f"of {self._protocol}?"
            )
        try:
            return foreign_json.read(content)
        except ValueError as error:
            raise PassingError("answered with something else than JSON") from error

    @property
    def _shown(self) -> str:
        """The address without a user and a password."""
        parts = urlsplit(self._address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
