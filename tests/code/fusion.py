"""Fusion: a server of SandboxFusion's protocol on this machine, for programs of the tests' own."""

import json
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Self

Reply = dict[str, Any] | int | bytes
"""A body, the status of an error, or bytes that are no JSON."""


def executed(request: dict[str, Any]) -> Reply:
    """What the server answers to a program in Python."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", request["code"]],
            input=request["stdin"].encode(),
            capture_output=True,
            timeout=request["run_timeout"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {
            "status": "Failed",
            "message": "",
            "compile_result": None,
            "run_result": {"status": "TimeLimitExceeded", "execution_time": 1.0},
        }
    return {
        "status": "Success" if done.returncode == 0 else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": {
            "status": "Finished",
            "execution_time": 0.01,
            "return_code": done.returncode,
            "stdout": done.stdout.decode("utf-8", "replace"),
            "stderr": done.stderr.decode("utf-8", "replace"),
        },
        "executor_pod_name": None,
        "files": {},
    }


class Fusion:
    """answer: from a request's body to a reply; requests: all so far; most: at the same time."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply] = executed) -> None:
        self.requests, self.paths = list[dict[str, Any]](), list[str]()
        self.most, self._running, self._lock = 0, 0, Lock()
        fusion = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with fusion._lock:
                    fusion.requests.append(body)
                    fusion.paths.append(self.path)
                    fusion._running += 1
                    fusion.most = max(fusion.most, fusion._running)
                reply = answer(body)
                with fusion._lock:
                    fusion._running -= 1
                content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(reply if isinstance(reply, int) else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
