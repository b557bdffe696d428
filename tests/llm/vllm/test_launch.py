"""A server that the run starts itself: how, what is said if it does not, and that it ends."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from groupwise.errors import UserError
from groupwise_llm.vllm.launch import Launch
from groupwise_llm.vllm.sampler import VLLM

SERVER = """
import http.server, json, os, sys
if "--fail" in sys.argv:
    sys.exit("the engine has no room")
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.environ["RECORD"], "w") as record:
    names = ("VLLM_SERVER_DEV_MODE", "VLLM_API_KEY")
    json.dump([sys.argv[1:], *map(os.environ.get, names)], record)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """What `sampler.start` says for a stand-in of vLLM that only answers and notes how."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    environment = {"PYTHONPATH": str(tmp_path), "RECORD": str(tmp_path / "record")}
    return {"python": sys.executable, "environment": environment}


def launch(policy, start, **settings):
    config = VLLM.Config(start=start, **settings)
    return Launch(config.start, policy, config)


def test_it_starts_with_what_training_needs_and_ends(make, start, tmp_path):
    policy = make("llama", precision="bf16")
    own = launch(
        policy,
        {**start, "options": {"max_model_len": 99, "dtype": "float16"}},
        sleep=True,
        api_key="no-key-of-ours",
    )
    url = own.open()
    arguments, *variables = json.loads(Path(tmp_path / "record").read_text())
    options = [
        "--model", str(policy.config.model), "--host", "127.0.0.1",
        "--port", url.rpartition(":")[2], "--dtype", "float16",
        "--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--enable-sleep-mode",
        "--max-model-len", "99",
    ]  # fmt: skip
    assert arguments == options  # no key: the machine's other users read a command line
    assert variables == ["1", "no-key-of-ours"]
    process = own.process
    assert own.log.parent == tmp_path
    own.close()
    assert process.poll() is not None
    assert not own.log.exists()
    assert subprocess.run(["pgrep", "-g", str(process.pid)], check=False).returncode == 1


def test_it_ends_when_the_run_is_killed(make, start, tmp_path):
    """The pipe that holds it closes with the process that has its other end."""
    own = launch(make("llama"), start)
    own.open()
    own.process.stdin.close()  # as the system does for a process that was killed
    own.process.wait(timeout=10)
    own.close()
    assert own.log.exists()  # it says why


def test_one_that_does_not_start(make, start, tmp_path):
    policy = make("llama")
    for settings, words in [
        ({**start, "options": {"fail": True}}, "vLLM did not start:\n    the engine has no room"),
        ({}, r"not installed here: pip install .groupwise\[vllm\].*sampler.start.python"),
        (
            {"python": "/nowhere/python"},
            "sampler.start.python: /nowhere/python is not an executable program",
        ),
        ({**start, "wait": 0.1, "options": {"host": "192.0.2.1"}}, "within 0.1 s; its log is"),
    ]:
        with pytest.raises(UserError, match=words):
            VLLM(VLLM.Config(start=settings), policy)
    assert len(list(tmp_path.glob("groupwise-vllm-*.log"))) == 2  # of both that were started
