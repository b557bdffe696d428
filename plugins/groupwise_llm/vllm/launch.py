"""Launch: a vLLM server that the run starts on its own machine, and stops at its end."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from groupwise.kit.errors import UserError
from groupwise_llm.files.folder import location
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vision.codec import PictureCodec
from groupwise_llm.vllm.adapters import launch_options
from groupwise_llm.vllm.client import Client
from groupwise_llm.vllm.settings import Settings, Start

HOLD = """exec 3<&0
"$@" </dev/null &
child=$!
(cat <&3 >/dev/null; kill $child 2>/dev/null) &
wait $child"""
"""A shell script that ends the server when standard input closes, also when this process is
killed."""
ALLOWED = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Environment variables that let the run set weights and adapters."""
POLL_SECONDS = 0.5
"""Seconds between two checks whether the server is up."""
LINES = 15
"""Last lines of the server's log that are shown when it does not start."""


class Launch:
    """start: options of the server; policy: whose model the server loads."""

    def __init__(self, start: Start, policy: LanguageModel, settings: Settings) -> None:
        self.start, self.policy, self.settings = start, policy, settings
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Path | None = None
        self.answered = False

    def open(self) -> str:
        """Start the server and wait until it answers; returns its address. Raises UserError with
        the last lines of its log."""
        if self.policy.config.instance is not None:
            raise UserError(
                "sampler.start: vLLM reads the model from files, and policy.model is an object: "
                "pass its folder or hub name"
            )
        python = self._python()
        port = _free_port()
        handle, name = tempfile.mkstemp(prefix="groupwise-vllm-", suffix=".log")
        self.log = Path(name)
        environment = {**os.environ, **self._key, **self.start.environment}
        with os.fdopen(handle, "wb") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", HOLD, "sh", python, *self._arguments(port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**environment, **ALLOWED},
                start_new_session=True,
            )
        url = f"http://127.0.0.1:{port}"
        self._wait(url)
        self.answered = True
        return url

    def close(self) -> None:
        """Stop the server and all its processes; its log is kept if the server failed.

        Does nothing on a process that started no server.
        """
        if self.process is None:
            return
        assert self.log is not None
        assert self.process.stdin is not None
        ran = self.answered and self.process.poll() is None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        if ran:
            self.log.unlink(missing_ok=True)
        self.process = None

    def _python(self) -> str:
        """The interpreter that has vLLM. Raises UserError where there is none."""
        python = self.start.python
        if python is None:
            if importlib.util.find_spec("vllm") is None:
                raise UserError(
                    "sampler.start: vLLM is not installed here: pip install "
                    '"groupwise[vllm]", or set sampler.start.python to the interpreter of an '
                    "environment that has it"
                )
            return sys.executable
        if shutil.which(python) is None:
            raise UserError(f"sampler.start.python: {python} is not an executable program")
        return python

    @property
    def _key(self) -> dict[str, str]:
        """The API key as environment variable: every user can read a command line, and vLLM logs
        it."""
        key = self.settings.api_key
        return {} if key is None else {"VLLM_API_KEY": key.get_secret_value()}

    def _arguments(self, port: int) -> list[str]:
        """The server's command line, after the interpreter."""
        config = self.policy.config
        options: dict[str, Any] = {
            "model": location(config),
            "host": "127.0.0.1",
            "port": port,
            "dtype": "bfloat16" if config.precision == "bf16" else "float32",
            "logprobs-mode": "processed_logprobs",
            "enable-scale-out": True,
            "enable-sleep-mode": self.settings.sleep,
            "trust-remote-code": bool(config.loading.get("trust_remote_code")),
            "revision": config.loading.get("revision"),
            **launch_options(self.policy, self.settings),
            **_limits(self.policy),
            **{name.replace("_", "-"): value for name, value in self.start.options.items()},
        }
        arguments = ["-m", "vllm.entrypoints.openai.api_server"]
        for name, value in options.items():
            if value is True:
                arguments.append(f"--{name}")
            elif value is not None and value is not False:
                arguments += [f"--{name}", str(value)]
        return arguments

    def _wait(self, url: str) -> None:
        assert self.process is not None
        end, client = time.monotonic() + self.start.wait, Client(url, self.settings)
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise UserError(f"sampler.start: vLLM did not start:\n{self._last_words()}")
            if client.answers():
                return
            time.sleep(POLL_SECONDS)
        raise UserError(
            f"sampler.start.wait: vLLM did not start within {self.start.wait:g} s; its log is "
            f"{self.log}:\n{self._last_words()}"
        )

    def _last_words(self) -> str:
        assert self.log is not None
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(f"    {line}" for line in lines[-LINES:])


def _limits(policy: LanguageModel) -> dict[str, str]:
    """The options by which vLLM prepares pictures as the policy does."""
    limits = policy.codec.reader.album.limits if isinstance(policy.codec, PictureCodec) else {}
    return {"mm-processor-kwargs": json.dumps(limits)} if limits else {}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
