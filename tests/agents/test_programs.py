"""Agents as functions in threads and as commands: what they are given, and how they end."""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from tests.agents.requests import GOOD, ask, chat, played, says, user

from groupwise.environment import CompletionFailed
from groupwise.kit.errors import UserError
from groupwise_agents.agent import Agent

ROW = {"prompt": "1+2?", "answer": "3"}


def test_arguments_are_the_address_the_row_and_its_columns():
    def agent(answer, *, model, base_url, api_key, row, missing="nothing"):
        assert (answer, model, row, missing) == ("3", "policy", ROW, "nothing")
        assert api_key in base_url
        return {"reward": 1.0, "steps": 2}

    outcome, _ = played(agent, says("Hello"), row=ROW)
    assert (outcome["reward"], outcome["steps"]) == (1.0, 2)

    def all_of_them(**columns):
        return set(columns) == {"prompt", "answer", "row", "base_url", "api_key", "model"}

    assert played(all_of_them, says("Hello"), row=ROW)[0]["reward"] == 1.0


def test_an_async_agent_may_block():
    """Its event loop is not the endpoint's."""

    async def agent(base_url):
        await asyncio.sleep(0)
        return float(chat(base_url, user("Hi"))["content"])

    assert played(agent, says("0.5"))[0]["reward"] == 0.5


def test_what_an_agent_raises_is_the_episodes_failure():
    def agent():
        raise ValueError("no such file")

    def exits():
        sys.exit(3)

    with pytest.raises(ValueError, match="no such file"):
        played(agent, says("Hello"))
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        played(exits, says("Hello"))


def test_an_async_agent_is_cancelled_when_its_episode_ends_before_it():
    cancelled = threading.Event()

    async def agent(base_url):
        try:
            threading.Thread(target=ask, args=(base_url, GOOD)).start()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(CompletionFailed):
        played(agent, CompletionFailed("not finite"))
    assert cancelled.wait(30)


PROGRAM = """
import json, os, sys, urllib.request
row = json.load(sys.stdin)
content = f"{row['prompt']} {os.getpid()}"
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": content}]}
url, key = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
headers = {"Authorization": f"Bearer {key}"}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print("thinking")
"""


def command(end):
    return Agent.Config(command=[sys.executable, "-c", PROGRAM + end])


def test_a_command_reads_its_row_and_prints_its_columns():
    end = "print(json.dumps({'reward': float(said == row['answer']), 'said': said}))"
    outcome, _ = played(command(end), says("3"), row=ROW)
    assert (outcome["reward"], outcome["said"], outcome["turns"]) == (1.0, "3", 1)
    assert played(command("print(0.5)"), says("3"), row=ROW)[0]["reward"] == 0.5
    assert "reward" not in played(command(""), says("3"), row=ROW)[0]


@pytest.mark.parametrize("others", ["", "*", "example.org, 10.0.0.1"])
@pytest.mark.parametrize("is_command", [True, False])
def test_requests_of_agents_pass_no_proxy(monkeypatch, others, is_command):
    def agent(base_url, model):
        body = json.dumps({"model": model, "messages": [user("Hi")]}).encode()
        request = Request(f"{base_url}/chat/completions", body)
        return float(json.load(urlopen(request))["choices"][0]["message"]["content"])

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("NO_PROXY", others)
    monkeypatch.delenv("no_proxy", raising=False)
    run = command("print(float(said))") if is_command else agent
    assert played(run, says("3"), row=ROW)[0]["reward"] == 3.0
    assert others in os.environ["NO_PROXY"].replace(",10", ", 10")


def test_a_command_that_leaves_a_process_running_is_over_with_its_own_exit():
    began = time.monotonic()
    config = Agent.Config(command=["sh", "-c", "sleep 30 & sleep 0.2; echo 1.0"])
    assert played(config, says("3"))[0]["reward"] == 1.0
    assert time.monotonic() - began < 20


def test_what_a_command_detaches_ends_with_it():
    script = "(setsid sh -c 'echo $$ >&2; exec sleep 600' 2>&1 &) | { read number; echo $number; }"
    reward = played(Agent.Config(command=["sh", "-c", script]), says("3"))[0]["reward"]
    status = Path("/proc", str(int(reward)), "stat")
    assert not status.exists() or ") Z " in status.read_text()


def test_a_command_that_does_not_exist():
    with pytest.raises(UserError, match=r"environment.command: there is no program 'nowhere'"):
        played(Agent.Config(command=["nowhere"]), says("3"))


def test_a_command_that_fails_says_why():
    end = "sys.exit('no such tool')"
    with pytest.raises(RuntimeError, match=r"exited with 1: no such tool"):
        played(command(end), says("3"), row=ROW)


def test_a_command_is_killed_when_its_episode_ends_before_it():
    processes = []

    def fails(context):
        processes.append(int(context[-1]["content"].split()[-1]))
        raise CompletionFailed("not finite")

    with pytest.raises(CompletionFailed):
        played(command("import time; time.sleep(600)"), fails, row=ROW)
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0], 0)
