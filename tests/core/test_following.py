"""`groupwise report RUN --watch`: what is served, to whom, and how it ends."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupwise.report import live as states
from groupwise.report.watch import _Server, watch


def begin(folder: Path, *, process: int | None = None) -> Path:
    """A run that has begun and has made no step; it is this process's if none is named."""
    folder.mkdir()
    (folder / "run.json").write_text('{"groupwise": "0"}')
    (folder / "config.yaml").write_text("train: {steps: 9}\n")
    holder = {"process": process or os.getpid(), "host": socket.gethostname(), "since": "now"}
    (folder / "run.lock").write_text(json.dumps(holder))
    return folder


def step(run: Path, number: int) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": number, "reward": number / 9}) + "\n")


def end(run: Path, **more: object) -> None:
    result = {"before": {}, "after": {}, "steps": 9, "seconds": 5, **more}
    (run / "result.json").write_text(json.dumps(result))


@contextmanager
def served(*runs: Path):
    """A function that asks for a path, and what the server said."""
    said: list[str] = []
    with _Server(runs, 0, said.append) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()

        def ask(path: str = "/", method: str = "GET", host: str | None = None, **headers: str):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.putrequest(method, path, skip_host=True)
            for name in (f"localhost:{server.server_port}" if host is None else host).split():
                connection.putheader("Host", name)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer, answer.read().decode()

        try:
            yield ask, said
        finally:
            server.shutdown()
            thread.join()


def words(html: str) -> str:
    return re.sub("<.*?>", " ", html.split("<main", 1)[1].split("</main>", 1)[0])


def test_a_run_is_followed_from_before_its_first_step_to_its_end(tmp_path):
    run = begin(tmp_path / "run")
    with served(run) as (ask, said):
        answer, html = ask()
        assert answer.status == 200
        assert "The run is about to begin. This page follows it." in words(html)
        first = answer.headers["ETag"]
        assert f'data-version="{first.replace(chr(34), "&quot;")}"' in html
        assert ask(If_None_Match=first)[0].status == 304
        step(run, 1)
        answer, html = ask(If_None_Match=first)
        assert answer.status == 200
        assert answer.headers["ETag"] != first
        assert "1 of 9 steps" in words(html)
        assert "The run goes on." in words(html)
        assert said == []
        end(run)
        html = ask()[1]
        assert "The run has ended." in words(html)
        assert "follows it" not in words(html)
    assert said[0] == "The run has ended. The page stays; Ctrl-C closes it."
    assert len(said) == 1
    assert not (run / "report.html").exists()  # it reads, and writes nothing


def test_a_page_is_made_once_for_all_who_ask(tmp_path, monkeypatch):
    made = []
    run = begin(tmp_path / "run")
    monkeypatch.setattr("groupwise.report.watch._made", lambda *_: made.append(1) or "page")
    with served(run) as (ask, _):
        assert [ask()[1] for _ in range(4)] == ["page"] * 4
        step(run, 1)
        ask()
    assert len(made) == 2


def test_several_runs_are_followed_on_one_page(tmp_path):
    one, two = begin(tmp_path / "one"), begin(tmp_path / "two")
    end(one)
    with served(one, two) as (ask, said):
        assert "1 of 2 runs go on." in words(ask()[1])
        end(two)
        assert "All runs have ended." in words(ask()[1])
    assert said == ["All runs have ended. The page stays; Ctrl-C closes it."]


def test_how_a_run_stands(tmp_path):
    def sentence(run: Path) -> str:
        return states.live([run]).sentence

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    killed = begin(tmp_path / "killed", process=dead.pid)
    step(killed, 1)
    assert sentence(killed) == "The run was interrupted: no process works on it."
    run = begin(tmp_path / "run")
    step(run, 1)
    end(run, interrupted=True)
    assert sentence(run) == "The run was interrupted."
    later = (run / "result.json").stat().st_mtime_ns + 10**9
    step(run, 2)  # resumed: the result is that of before
    os.utime(run / "metrics.jsonl", ns=(later, later))
    assert sentence(run) == "The run goes on."
    elsewhere = json.dumps({"process": 1, "host": "another", "since": "now"})
    (killed / "run.lock").write_text(elsewhere)
    assert sentence(killed) == "The run goes on."
    (killed / "run.lock").write_text("[]")
    assert states.live([killed]).over


def test_a_resumed_run_shows_no_result_of_before(tmp_path):
    run = begin(tmp_path / "run")
    end(run, unit="tokens")
    later = (run / "result.json").stat().st_mtime_ns + 10**9
    step(run, 3)
    os.utime(run / "metrics.jsonl", ns=(later, later))
    with served(run) as (ask, _):
        assert "1 of 9 steps" in words(ask()[1])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[::1]", "0.0.0.0",
     "localhost:80:80", "LOCALHOST@evil", "", "localhost evil.example", "192.168.0.7"],
)  # fmt: skip
def test_other_names_of_this_machine_are_refused(tmp_path, host):
    """A web page whose name was made to lead here would read the run."""
    with served(begin(tmp_path / "run")) as (ask, _):
        answer, html = ask(host=host)
        assert answer.status == 403
        assert html == ""
        assert ask(host="127.0.0.1:9")[0].status == 200  # the port of a tunnel


@pytest.mark.parametrize(
    "path", ["/run.json", "/../run.json", "/config.yaml", "/samples/", "/?x", "/report.html"]
)
def test_nothing_but_the_page_is_served(tmp_path, path):
    with served(begin(tmp_path / "run")) as (ask, _):
        answer, body = ask(path)
        assert (answer.status, body) == (404, "")
        answer, body = ask("/", "HEAD")
        assert (answer.status, body) == (200, "")
        assert ask("/", "POST")[0].status == 501
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_only_this_machine_is_listened_to(tmp_path):
    with _Server([begin(tmp_path / "run")], 0, print) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_taken_port_and_a_folder_without_a_run_are_told(tmp_path):
    run = begin(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 cannot be had: .*in use"):
            watch([run], port, say=print)
    with pytest.raises(ValueError, match="is not the folder of a run"):
        watch([run, tmp_path], say=print)


def test_ctrl_c_closes_it_and_is_no_error(tmp_path):
    """In a process of its own, as a terminal would do it: some 2 s of imports."""
    run = begin(tmp_path / "run")
    command = [sys.executable, "-m", "groupwise", "report", str(run), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        line = it.stdout.readline()
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)/ follows ", line)[1])
        held = socket.create_connection(("127.0.0.1", port))  # a browser that keeps its connection
        it.send_signal(signal.SIGINT)
        out, err = it.communicate(timeout=60)
        held.close()
    assert (it.returncode, out.split()[-1], err) == (0, "closed", "")


def test_what_does_not_go_together_is_refused(tmp_path):
    from typer.testing import CliRunner

    from groupwise.cli.commands import app

    run = begin(tmp_path / "run")
    result = CliRunner().invoke(app, ["report", str(run), "--watch", "--out", "x.html"])
    assert result.exit_code == 2
    assert "--watch writes no file" in result.stderr
