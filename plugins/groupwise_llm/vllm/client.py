"""Client: HTTP requests to one server, repeated for a while when they fail."""

import sys
import threading
import time
from typing import Any

import requests

from groupwise import secrets
from groupwise.errors import UserError, first_line
from groupwise_llm.vllm.settings import Settings

FIRST_WAIT, LONGEST_WAIT = 0.25, 10.0
"""Seconds before a failed request is repeated: the first wait, doubled each time up to the
longest."""


class RefusedError(Exception):
    """The server refused the request, or failed at one that must not be repeated."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Client:
    """One server's HTTP client; url: http://host:port, without a path."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url, self.settings = url, settings
        key = settings.api_key
        self._headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
        self._lock, self._waits = threading.Lock(), False

    def get(self, path: str, **query: Any) -> Any:
        return self._answer("GET", path, params=query)

    def post(self, path: str, body: Any = None, *, patient: bool = True, **query: Any) -> Any:
        """patient: whether to repeat the request after a server error (status 5xx)."""
        return self._answer("POST", path, patient=patient, params=query, json=body)

    def _answer(self, method: str, path: str, *, patient: bool = True, **request: Any) -> Any:
        """The server's answer as JSON.

        Raises RefusedError; UserError where requests fail for `patience` seconds; UserError where
        one takes longer than `timeout`, which is not repeated: the server may still be at work.
        """
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
                    problem = self._problem(error)
                    raise UserError(f"sampler: the vLLM server at {self.url} {problem}") from error
                if first:
                    self._note_waiting(error)
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
        return answer.json()  # a RequestException where it is no JSON

    def _note_waiting(self, error: Exception) -> None:
        """Print once, whatever number of requests wait, that the run waits and why."""
        with self._lock:
            waited, self._waits = self._waits, True
        if not waited:
            why = f"fails: {error}" if isinstance(error, _FailedError) else "cannot be reached"
            note = (
                f"note: the vLLM server at {self.url} {why}; requests are repeated for "
                f"{self.settings.patience:g} s (sampler.patience)"
            )
            print(secrets.redacted(note), file=sys.stderr, flush=True)

    def _problem(self, error: Exception) -> str:
        settings = self.settings
        if isinstance(error, requests.ReadTimeout):
            return f"took longer than {settings.timeout:g} s to answer (sampler.timeout)"
        retried = f"the request was repeated for {settings.patience:g} s (sampler.patience)"
        if isinstance(error, _FailedError):
            return f"fails: {error}; {retried}. Look into its own log"
        if isinstance(error, requests.JSONDecodeError):
            return f"does not answer with JSON; is it vLLM? {retried}"
        if isinstance(error, requests.ConnectionError):
            return f"cannot be reached: {retried}. Is it running, and is the address right?"
        return f"cannot be used: {first_line(error)}; {retried}"


class _FailedError(Exception):
    """The server answered with an error of its own (status 5xx)."""


def _reason(answer: requests.Response) -> str:
    """The message in an error answer."""
    try:
        content = answer.json()
    except requests.JSONDecodeError:
        return answer.text.strip()[:500] or f"status {answer.status_code}"
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return str(message or content)[:500]
