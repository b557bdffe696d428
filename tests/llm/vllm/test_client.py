"""The HTTP client: nothing of the environment, and bounds on time and size of a whole answer."""

import asyncio
import gzip
import json
import socket
import threading
import time
from contextlib import suppress
from queue import Queue

import pytest

from groupwise.kit.errors import UserError
from groupwise_llm.vllm.client import Client, LostError
from groupwise_llm.vllm.server import Server
from groupwise_llm.vllm.settings import Settings


@pytest.fixture
def listener():
    """listener(answer) -> the address of a server that calls `answer(connection)` for each client;
    `seen` has the first bytes that it received of each."""
    sockets, seen = [], []

    def start(answer):
        server = socket.create_server(("127.0.0.1", 0))
        sockets.append(server)

        def serve():
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    seen.append(connection.recv(65536))
                    with connection, suppress(OSError):
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    start.seen = seen
    yield start
    for server in sockets:
        server.close()


def client_of(url, **settings):
    return Client(url, Settings(servers=[url], patience=0.0, **settings))


def test_neither_proxy_nor_password_of_the_environment_is_used(listener, monkeypatch, tmp_path):
    def answer(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    url, proxy = listener(answer), listener(answer)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password hidden\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    client = client_of(url, api_key="secret")
    assert client.get("weight_info") == {}
    assert client.answers()
    first, health = listener.seen
    assert first.startswith(b"GET /weight_info HTTP/1.1")
    assert b"Bearer secret" in first
    assert health.startswith(b"GET /health HTTP/1.1")
    assert b"Basic" not in first + health


@pytest.mark.parametrize("where", ["headers", "content"])
def test_a_server_that_sends_a_byte_now_and_then_takes_too_long(listener, where):
    ended = threading.Event()

    def drip(connection):
        start = b"HTTP/1.1 200 OK\r\nX-Slow: "
        if where == "content":
            start += b"no\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(start)
        with suppress(OSError):
            while True:
                connection.sendall(b" ")
                time.sleep(0.01)
        ended.set()

    with pytest.raises(LostError, match=r"took longer than 0.3 s to answer \(sampler.timeout\)"):
        client_of(listener(drip), timeout=0.3).get("weight_info")
    assert ended.wait(60)  # the connection is closed, so the server stops


def test_an_answer_is_bounded_in_size(listener):
    sent = 0

    def flood(connection):
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            sent += connection.send(b" " * 2**20)

    with pytest.raises(LostError, match="an answer of more than 16 MiB"):
        client_of(listener(flood), timeout=60).get("server_info")
    assert sent < 2**26


def drips(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.01)


def floods(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
    while True:
        connection.sendall(b" " * 2**20)


@pytest.mark.parametrize("answer", [drips, floods])
def test_whether_a_server_is_up_is_asked_for_a_bounded_time_and_size(listener, answer):
    url = listener(answer)
    asked: Queue[bool] = Queue()
    threading.Thread(target=lambda: asked.put(client_of(url).answers()), daemon=True).start()
    assert asked.get(timeout=60) is False


def test_a_compressed_answer_is_not_unpacked(listener, monkeypatch):
    """Packed twice, a kilobyte becomes a gigabyte before its size could be known."""
    packed = gzip.compress(gzip.compress(b" " * 2**27))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: %d\r\n\r\n"
    url = listener(lambda connection: connection.sendall(head % len(packed) + packed))
    read = []
    monkeypatch.setattr(json, "loads", lambda text: read.append(len(text)) or {})
    client_of(url).get("weight_info")
    assert read == [len(packed)]
    assert b"Accept-Encoding: identity" in listener.seen[0]


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (b"200 OK", b"[" * 200_000, "does not answer with JSON; is it vLLM"),
        (b"200 OK", b"[1]", "refuses to state the version of its weights|is it another server"),
        (b"302 Found", b"{}", "refuses to state the version of its weights: "),
    ],
)
def test_an_answer_of_another_kind_is_an_error_in_a_sentence(listener, status, content, message):
    head = b"HTTP/1.1 %b\r\nLocation: /other\r\nContent-Length: %d\r\n\r\n"
    url = listener(lambda connection: connection.sendall(head % (status, len(content)) + content))
    with pytest.raises(UserError, match=message):
        Server(client_of(url)).tag  # noqa: B018


def test_requests_work_inside_a_running_event_loop(listener):
    """As in a notebook, whose main thread runs one."""

    def answer(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def cell():
        return client_of(listener(answer)).get("weight_info")

    assert asyncio.run(cell()) == {}
