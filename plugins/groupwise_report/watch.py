"""Watch: the page of runs that go on, served to browsers of this machine alone.

Every user of the machine can connect to the port, also where the run's folder is closed to them. So
the page's address has a random part, which is shown to the one who serves it.
"""

import hmac
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from groupwise_report import page, several
from groupwise_report.live import Live, live
from groupwise_report.run_data import RunData, check_runs, read_run

ADDRESS = "127.0.0.1"
OWN = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
"""Allowed hosts of a request. A web page could let another name resolve to this address, to read
what is served (DNS rebinding). The port may be that of a tunnel."""
EVERY = 1.0
"""Seconds between checks whether the runs have ended."""
LONGEST = 60.0
"""Seconds after which a connection is ended: enough for a page through a slow tunnel."""
_KEPT = ("unit", "policy", "algorithm")
"""Keys of a result that stay true after the run was resumed."""


def watch(runs: Sequence[Path], port: int = 0, *, say: Callable[[str], None]) -> None:
    """Serve the page of these runs until Ctrl-C. `port` 0 takes any that is free.

    say: called with messages: the address, the end of the runs. Writes no file.

    Raises ValueError if a folder has no run, or if the port is taken.
    """
    check_runs(runs)
    try:
        server = Server(runs, port, say)
    except OSError as error:
        raise ValueError(
            f"port {port} of {ADDRESS} cannot be had: {error.strerror}; leave out --port to take "
            f"any that is free"
        ) from error
    try:
        with server:
            say(f"{server.address} follows {', '.join(map(str, runs))}")
            server.serve_forever(EVERY)
    except KeyboardInterrupt:  # the usual end, and no error
        say("closed")


class Server(ThreadingHTTPServer):
    """Serves the newest page, which is made again only if a run has written something."""

    daemon_threads = True  # a browser that holds a connection does not keep the server open

    def __init__(self, runs: Sequence[Path], port: int, say: Callable[[str], None]) -> None:
        self.runs, self.say = runs, say
        self._lock, self._newest = Lock(), (Live("", "", over=False), b"")
        self._is_over = False
        self._since: dict[socket.socket, float] = {}
        self.path = f"/{secrets.token_urlsafe(16)}"
        super().__init__((ADDRESS, port), _Handler)

    @property
    def address(self) -> str:
        """The only address that has the page."""
        return f"http://{ADDRESS}:{self.server_port}{self.path}"

    def page(self) -> tuple[str, bytes]:
        """The version of the page, and the page."""
        with self._lock:
            now = live(self.runs)
            if now.version != self._newest[0].version:
                self._newest = now, _made(self.runs, now).encode("utf-8", errors="replace")
            return self._newest[0].version, self._newest[1]

    def service_actions(self) -> None:
        now = live(self.runs)
        if now.over and not self._is_over:
            self.say(f"{now.sentence} The page stays; Ctrl-C closes it.")
        self._is_over = now.over
        self._end_old()

    # ---- connections

    def process_request(self, request: Any, client_address: Any) -> None:
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        self._since.pop(request, None)
        super().close_request(request)

    def _end_old(self) -> None:
        """End connections that are older than `LONGEST`, each of which holds a thread."""
        now = time.monotonic()
        for connection, since in list(self._since.items()):
            if now - since > LONGEST:
                with suppress(OSError):  # it has just ended
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a connection that ended before its answer: a browser left, or
        Ctrl-C closed it just as its thread began."""
        if not isinstance(sys.exception(), ConnectionError) and request.fileno() >= 0:
            super().handle_error(request, client_address)


def _made(runs: Sequence[Path], now: Live) -> str:
    data = [_present(read_run(run), live([run])) for run in runs]
    return page.page(data[0], now) if len(data) == 1 else several.page(data, now)


def _present(run: RunData, now: Live) -> RunData:
    """The run; while it goes on, without the result from before it was resumed."""
    if now.over:
        return run
    return replace(run, result={k: v for k, v in run.result.items() if k in _KEPT})


class _Handler(BaseHTTPRequestHandler):
    """Serves the page, and nothing else."""

    server: Server
    server_version, sys_version = "groupwise", ""
    headers_sent: ClassVar[dict[str, str]] = {
        "Cache-Control": "no-store",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not OWN.fullmatch(hosts[0]):
            self._answer(HTTPStatus.FORBIDDEN)
        elif not hmac.compare_digest(self.path.encode(), self.server.path.encode()):
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            version, body = self.server.page()
            if self.headers.get("If-None-Match") == version:
                self._answer(HTTPStatus.NOT_MODIFIED, version=version)
            else:
                self._answer(HTTPStatus.OK, body, version)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, body: bytes = b"", version: str = "") -> None:
        self.send_response(status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        if version:
            self.send_header("ETag", version)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing: browsers ask every second."""
