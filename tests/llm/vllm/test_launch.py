"""A server that the run starts itself: its command, errors at its start, and its end."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from groupwise.kit.errors import UserError
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
    """`sampler.start` for a fake vLLM, which records its arguments and answers every request."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    environment = {"PYTHONPATH": str(tmp_path), "RECORD": str(tmp_path / "record")}
    return {"python": sys.executable, "environment": environment}


def launch(policy, start, **settings):
    config = VLLM.Config(start=start, **settings)
    return Launch(config.start, policy, config)


def test_it_starts_with_the_options_for_training_and_ends(make, start, tmp_path):
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
    assert arguments == options  # without the key, as other users can read command lines
    assert variables == ["1", "no-key-of-ours"]
    process = own.process
    assert own.log.parent == tmp_path
    own.close()
    assert process.poll() is not None
    assert not own.log.exists()
    end = time.monotonic() + 10  # what was killed is listed until its parent looks
    while (
        of_group := subprocess.run(["pgrep", "-g", str(process.pid)], check=False)
    ).returncode == 0:
        assert time.monotonic() < end, "a process of the server lives on"
        time.sleep(0.1)
    assert of_group.returncode == 1


def test_a_server_of_a_policy_with_adapters_takes_them(make, start, tmp_path):
    for lora, more, options in [
        ({"rank": 17}, {}, ["--enable-lora", "--max-lora-rank", "32"]),
        ({"rank": 17}, {"adapters": False}, []),
        ({"rank": 600, "targets": ["q_proj"]}, {}, []),
    ]:
        own = launch(make("llama", lora=lora), start, **more)
        own.open()
        arguments, *_ = json.loads((tmp_path / "record").read_text())
        own.close()
        assert arguments[-len(options) :] == options or not options
        assert ("--enable-lora" in arguments) == bool(options)


def test_it_ends_when_the_run_is_killed(make, start, tmp_path):
    """It ends when its standard input closes, as the system does when the run dies."""
    own = launch(make("llama"), start)
    own.open()
    own.process.stdin.close()  # as when the run was killed
    own.process.wait(timeout=10)
    own.close()
    assert own.log.exists()  # it may hold the cause


def test_a_server_that_does_not_start_is_an_error(make, start, tmp_path):
    policy = make("llama")
    for settings, message in [
        ({**start, "options": {"fail": True}}, "vLLM did not start:\n    the engine has no room"),
        ({}, r"not installed here: pip install .groupwise\[vllm\].*sampler.start.python"),
        (
            {"python": __file__},
            "sampler.start.python: .*test_launch.py is not an executable program",
        ),
        ({**start, "wait": 0.1, "options": {"host": "192.0.2.1"}}, "within 0.1 s; its log is"),
    ]:
        with pytest.raises(UserError, match=message):
            VLLM(VLLM.Config(start=settings), policy)
    assert len(list(tmp_path.glob("groupwise-vllm-*.log"))) == 2  # two of them were started
