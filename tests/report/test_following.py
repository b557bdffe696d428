"""`groupwise report RUN --watch`: the page that follows a run, its server, access and end."""

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupwise_report import live as states
from groupwise_report import watch as watching
from groupwise_report.watch import Server, watch


def begin(folder: Path, *, process: int | None = None) -> Path:
    """The folder of a run before its first step; `process` runs it, by default this one."""
    folder.mkdir()
    (folder / "run.json").write_text('{"groupwise": "0"}')
    (folder / "config.yaml").write_text("train: {steps: 9}\n")
    holder = {"process": process or os.getpid(), "host": socket.gethostname(), "since": "now"}
    (folder / "run.lock").write_text(json.dumps(holder))
    return folder


def step(run: Path, number: int) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": number, "reward": number / 9}) + "\n")


def end(run: Path, **fields: object) -> None:
    result = {"before": {}, "after": {}, "steps": 9, "seconds": 5, **fields}
    (run / "result.json").write_text(json.dumps(result))


@contextmanager
def serve(*runs: Path):
    """Serves the runs; yields a function that requests a path, and the messages of the server."""
    messages: list[str] = []
    with Server(runs, 0, messages.append) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()

        def request(
            path: str = server.path, method: str = "GET", host: str | None = None, **headers: str
        ):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.putrequest(method, path, skip_host=True)
            for name in (f"localhost:{server.server_port}" if host is None else host).split():
                connection.putheader("Host", name)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            response = connection.getresponse()
            return response, response.read().decode()

        request.port, request.path = server.server_port, server.path
        try:
            yield request, messages
        finally:
            server.shutdown()
            thread.join()


def words(html: str) -> str:
    return re.sub("<.*?>", " ", html.split("<main", 1)[1].split("</main>", 1)[0])


def test_the_page_follows_a_run_from_before_its_first_step_to_its_end(tmp_path):
    run = begin(tmp_path / "run")
    with serve(run) as (request, messages):
        response, html = request()
        assert response.status == 200
        assert "The run is about to begin. This page follows it." in words(html)
        first = response.headers["ETag"]
        assert f'data-version="{first.replace(chr(34), "&quot;")}"' in html
        assert request(If_None_Match=first)[0].status == 304
        step(run, 1)
        response, html = request(If_None_Match=first)
        assert response.status == 200
        assert response.headers["ETag"] != first
        assert "1 of 9 steps" in words(html)
        assert "The run goes on." in words(html)
        assert messages == []
        end(run)
        html = request()[1]
        assert "The run has ended." in words(html)
        assert "follows it" not in words(html)
    assert messages[0] == "The run has ended. The page stays; Ctrl-C closes it."
    assert len(messages) == 1
    assert not (run / "report.html").exists()  # nothing is written


def test_the_page_is_rendered_once_for_all_requests(tmp_path, monkeypatch):
    renderings = []
    run = begin(tmp_path / "run")
    monkeypatch.setattr("groupwise_report.watch._made", lambda *_: renderings.append(1) or "page")
    with serve(run) as (request, _):
        assert [request()[1] for _ in range(4)] == ["page"] * 4
        step(run, 1)
        request()
    assert len(renderings) == 2


def test_several_runs_are_followed_on_one_page(tmp_path):
    one, two = begin(tmp_path / "one"), begin(tmp_path / "two")
    end(one)
    with serve(one, two) as (request, messages):
        assert "1 of 2 runs go on." in words(request()[1])
        end(two)
        assert "All runs have ended." in words(request()[1])
    assert messages == ["All runs have ended. The page stays; Ctrl-C closes it."]


def test_the_page_states_whether_a_run_goes_on(tmp_path):
    def sentence(run: Path) -> str:
        return states.live([run]).sentence

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    killed = begin(tmp_path / "killed", process=ended.pid)
    step(killed, 1)
    assert sentence(killed) == "The run was interrupted: no process works on it."
    run = begin(tmp_path / "run")
    step(run, 1)
    end(run, interrupted=True)
    assert sentence(run) == "The run was interrupted."
    later = (run / "result.json").stat().st_mtime_ns + 10**9
    step(run, 2)  # resumed: result.json is older
    os.utime(run / "metrics.jsonl", ns=(later, later))
    assert sentence(run) == "The run goes on."
    other_host = json.dumps({"process": 1, "host": "another", "since": "now"})
    (killed / "run.lock").write_text(other_host)
    assert sentence(killed) == "The run goes on."
    (killed / "run.lock").write_text("[]")
    assert states.live([killed]).over


def test_the_page_of_a_resumed_run_ignores_its_earlier_result(tmp_path):
    run = begin(tmp_path / "run")
    end(run, unit="tokens")
    later = (run / "result.json").stat().st_mtime_ns + 10**9
    step(run, 3)
    os.utime(run / "metrics.jsonl", ns=(later, later))
    with serve(run) as (request, _):
        assert "1 of 9 steps" in words(request()[1])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[::1]", "0.0.0.0",
     "localhost:80:80", "LOCALHOST@evil", "", "localhost evil.example", "192.168.0.7"],
)  # fmt: skip
def test_requests_with_another_host_name_are_refused(tmp_path, host):
    """DNS rebinding: a web page whose name resolves to this machine could read the run."""
    with serve(begin(tmp_path / "run")) as (request, _):
        response, html = request(host=host)
        assert response.status == 403
        assert html == ""
        assert request(host="127.0.0.1:9")[0].status == 200  # any port, as through a tunnel


@pytest.mark.parametrize(
    "path", ["/run.json", "/../run.json", "/config.yaml", "/samples/", "/?x", "/report.html"]
)
def test_nothing_but_the_page_is_served(tmp_path, path):
    with serve(begin(tmp_path / "run")) as (request, _):
        response, body = request(path)
        assert (response.status, body) == (404, "")
        response, body = request(method="HEAD")
        assert (response.status, body) == (200, "")
        assert request(method="POST")[0].status == 501
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert response.headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in response.headers


def test_the_page_is_served_only_at_its_own_address(tmp_path):
    """Every user of the machine reaches the port; only who runs the server knows the address."""
    run = begin(tmp_path / "run")
    with Server([run], 0, print) as one, Server([run], 0, print) as two:
        assert one.path != two.path
        assert one.address == f"http://127.0.0.1:{one.server_port}{one.path}"
        assert re.fullmatch(r"/[\w-]{20,}", one.path)
    with serve(run) as (request, _):
        path = request.path
        for other in ("/", "*", path[:-1], f"{path}x", f"{path}/", path.swapcase(), f"{path}?x"):
            response, body = request(other)
            assert (response.status, body) == (404, ""), other
            assert "ETag" not in response.headers  # it changes with the run
        assert request(path)[0].status == 200


def handlers() -> list[threading.Thread]:
    """The threads that answer requests now."""
    threads = [each for each in threading.enumerate() if "process_request_thread" in each.name]
    return [
        each for each in threads if each.is_alive()
    ]  # `enumerate` has those about to start, too


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: local"])
def test_a_connection_that_asks_for_nothing_ends(tmp_path, monkeypatch, sent):
    monkeypatch.setattr(watching, "LONGEST", 0.2)
    with serve(begin(tmp_path / "run")) as (request, _):
        with socket.create_connection(("127.0.0.1", request.port), timeout=20) as connection:
            connection.sendall(sent)
            while connection.recv(100):
                pass
        for thread in handlers():
            thread.join(20)
        assert handlers() == []


def test_a_browser_that_leaves_prints_nothing(tmp_path, monkeypatch, capfd):
    left = threading.Event()

    def made(*_):
        assert left.wait(20)
        return "page" * 10**6

    monkeypatch.setattr(watching, "_made", made)
    with serve(begin(tmp_path / "run")) as (request, _):
        for resets in (True, False):
            left.clear()
            connection = socket.create_connection(("127.0.0.1", request.port), timeout=20)
            # Without waiting, closing resets the connection.
            option = struct.pack("ii", resets, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            host = f"Host: localhost:{request.port}"
            connection.sendall(f"GET {request.path} HTTP/1.1\r\n{host}\r\n\r\n".encode())
            end = time.monotonic() + 20
            while not handlers() and time.monotonic() < end:
                time.sleep(0.01)
            connection.close()
            left.set()
            for thread in handlers():
                thread.join(20)
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_page_itself_is_shown(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(watching, "_made", lambda *_: 1 / 0)
    disconnected = pytest.raises(http.client.RemoteDisconnected)
    with serve(begin(tmp_path / "run")) as (request, _), disconnected:
        request()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_the_server_listens_only_on_the_local_interface(tmp_path):
    with Server([begin(tmp_path / "run")], 0, print) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_and_a_folder_without_a_run_are_refused(tmp_path):
    run = begin(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 cannot be had: .*in use"):
            watch([run], port, say=print)
    with pytest.raises(ValueError, match="is not the folder of a run"):
        watch([run, tmp_path], say=print)


@pytest.mark.slow
def test_ctrl_c_ends_the_server_without_an_error(tmp_path):
    """In a separate process, as from a terminal; its imports take about 2 s."""
    run = begin(tmp_path / "run")
    command = [sys.executable, "-m", "groupwise", "report", str(run), "--watch"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        line = server.stdout.readline()
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)/[\w-]{20,} follows ", line)[1])
        # As a browser that keeps its connection open.
        connection = socket.create_connection(("127.0.0.1", port))
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
        connection.close()
    assert (server.returncode, out.split()[-1], err) == (0, "closed", "")


def test_a_connection_closed_before_its_thread_began_is_no_error(tmp_path, capsys):
    run = begin(tmp_path / "run")
    with Server([run], 0, print) as server:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.close()
            server.process_request_thread(theirs, ("127.0.0.1", 1))
            assert capsys.readouterr().err == ""
            # An error of the server's own is still shown.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server, "finish_request", lambda *_: 1 / 0)
                server.process_request_thread(ours, ("127.0.0.1", 1))
            assert "ZeroDivisionError" in capsys.readouterr().err


def test_watch_and_out_together_are_refused(tmp_path):
    from tests.command_line import call

    run = begin(tmp_path / "run")
    result = call("report", run, "--watch", "--out", "x.html")
    assert result.exit_code == 2
    assert "--watch writes no file" in result.stderr
