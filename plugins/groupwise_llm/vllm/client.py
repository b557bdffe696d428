"""Client: requests to one server, sent again for a while where they fail."""

import sys
import threading
import time
from typing import Any

import requests

from groupwise import secrets
from groupwise.errors import UserError, first_line
from groupwise_llm.vllm.settings import Settings

FIRST_WAIT, LONGEST_WAIT = 0.25, 10.0
"""Seconds before a request is sent again: twice as many each time."""


class RefusedError(Exception):
    """The server answered that it will not do it; to ask again is no use."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Client:
    """url: of the server, without a path."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url, self.settings = url, settings
        key = settings.api_key
        self._headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
        self._lock, self._waits = threading.Lock(), False

    def get(self, path: str, **query: Any) -> Any:
        return self._answer("GET", path, params=query)

    def post(self, path: str, body: Any = None, *, patient: bool = True, **query: Any) -> Any:
        """patient: whether to ask again where the server says that it failed."""
        return self._answer("POST", path, patient=patient, params=query, json=body)

    def _answer(self, method: str, path: str, *, patient: bool = True, **request: Any) -> Any:
        """What the server answers. Raises RefusedError; and UserError where it does not answer, or
        fails, for as long as `patience` says; or takes longer than `timeout`, as to ask it again
        would have it do the same twice."""
        deadline, wait = None, FIRST_WAIT
        while True:
            try:
                answer = self._once(method, path, **request)
                self._waits = False
                return answer
            except (requests.RequestException, _FailedError) as error:
                if isinstance(error, _FailedError) and not patient:
                    raise RefusedError(500, str(error)) from error
                now = time.monotonic()
                first, deadline = deadline is None, deadline or now + self.settings.patience
                if now + wait > deadline or isinstance(error, requests.ReadTimeout):
                    words = self._words(error)
                    raise UserError(f"sampler: the vLLM server at {self.url} {words}") from error
                if first:
                    self._say_once(error)
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _once(self, method: str, path: str, **request: Any) -> Any:
        answer = requests.request(
            method,
            f"{self.url}/{path}",
            headers=self._headers,
            timeout=(10.0, self.settings.timeout),
            **request,
        )
        if answer.status_code >= 500:
            raise _FailedError(_reason(answer))
        if answer.status_code >= 400:
            raise RefusedError(answer.status_code, _reason(answer))
        return answer.json()  # of requests, too: a RequestException where it is none

    def _say_once(self, error: Exception) -> None:
        """That a run stands still, and why: of the requests that wait at once the first says it."""
        with self._lock:
            waited, self._waits = self._waits, True
        if not waited:
            why = f"fails: {error}" if isinstance(error, _FailedError) else "cannot be reached"
            note = (
                f"note: the vLLM server at {self.url} {why}; it is asked again for "
                f"{self.settings.patience:g} s (sampler.patience)"
            )
            print(secrets.redacted(note), file=sys.stderr, flush=True)

    def _words(self, error: Exception) -> str:
        settings = self.settings
        if isinstance(error, requests.ReadTimeout):
            return f"took longer than {settings.timeout:g} s to answer (sampler.timeout)"
        tried = f"it was asked again for {settings.patience:g} s (sampler.patience)"
        if isinstance(error, _FailedError):
            return f"fails: {error}; {tried}. Its own log says why"
        if isinstance(error, requests.JSONDecodeError):
            return f"answers with something else than JSON; is it vLLM? {tried}"
        if isinstance(error, requests.ConnectionError):
            return f"cannot be reached: {tried}. Is it running, and is the address right?"
        return f"cannot be asked: {first_line(error)}; {tried}"


class _FailedError(Exception):
    """The server answered that something went wrong in it."""


def _reason(answer: requests.Response) -> str:
    """What an answer that is an error says."""
    try:
        content = answer.json()
    except requests.JSONDecodeError:
        return answer.text.strip()[:500] or f"status {answer.status_code}"
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return str(message or content)[:500]
