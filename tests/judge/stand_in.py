"""StandIn: a chat completions server on this machine, whose judge is a function."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Self

Request = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What the server sends: the judge's text, or an error of a status."""

    text: str | None = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    finish_reason: str = "stop"


class StandIn:
    """judge: from a request's body to a reply; requests: all bodies so far; keys: their keys.

    key: what it requires, if anything; envelope: what is sent instead of a chat completion.
    """

    def __init__(self, judge: Callable[[Request], Reply | str]) -> None:
        self.judge, self.requests, self.keys = judge, [], []
        self._lock = Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet

            def do_GET(self) -> None:
                key = self.headers["Authorization"]
                status = 401 if stand_in.key and key != f"Bearer {stand_in.key}" else 200
                self.answer(status, {"data": []}, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stand_in._lock:
                    stand_in.requests.append(body)
                    stand_in.keys.append(self.headers["Authorization"])
                reply = stand_in.judge(body)
                reply = Reply(reply) if isinstance(reply, str) else reply
                if reply.status != 200:
                    self.answer(reply.status, {"error": {"message": reply.text}}, reply.headers)
                    return
                message = {"role": "assistant", "content": reply.text}
                choice = {"message": message, "finish_reason": reply.finish_reason}
                usage = {"prompt_tokens": 100, "completion_tokens": 10}
                whole = {"choices": [choice], "usage": usage}
                self.answer(200, stand_in.envelope(whole), reply.headers)

            def answer(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # connections that may wait; with the usual 5 some are reset

        self.key: str | None = None
        self.envelope: Callable[[Any], Any] = lambda whole: whole
        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def text_of(request: Request) -> str:
    """The text of the user's message; a picture is [picture]."""
    content = request["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "[picture]") for block in content)


def images_of(request: Request) -> list[str]:
    """The addresses of the pictures in a request, in their order."""
    contents = [message["content"] for message in request["messages"]]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [block["image_url"]["url"] for block in blocks if block["type"] == "image_url"]
