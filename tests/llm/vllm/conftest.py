"""Local servers with vLLM's protocol, and samplers connected to them."""

import importlib.util
from pathlib import Path

import pytest
from tests.llm.vision import standins

from groupwise import train
from groupwise_llm.vllm.sampler import VLLM

_spec = importlib.util.spec_from_file_location("engine", Path(__file__).with_name("engine.py"))
_engine = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_engine)


@pytest.fixture
def engine(saved):
    """engine(architecture, model={...}, **facts) -> a running server."""
    running = []

    def start(architecture="llama", model=None, **facts):
        pictured = architecture in standins.STAND_INS
        folder = (standins.folder if pictured else saved)(architecture, **(model or {}))
        running.append(_engine.Engine(folder, **facts))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def late():
    return _engine.late


@pytest.fixture
def sampler(tmp_path):
    """sampler(policy, *engines, **settings) -> the sampler; its files are in the test's folder.

    Requests are not repeated unless `patience` is set.
    """
    samplers = []

    def build(policy, *engines, **settings):
        urls = [one.url for one in engines]
        config = VLLM.Config(
            **{"servers": urls, "folder": str(tmp_path), "patience": 0.0, **settings}
        )
        samplers.append(VLLM(config, policy))
        return samplers[-1]

    yield build
    for one in samplers:
        one.close()


@pytest.fixture
def pair(make, engine, sampler):
    """pair(policy={...}, facts={...}, **settings) -> a policy, a server, and a sampler that has
    sent the policy's weights to the server."""

    def build(policy=None, facts=None, **settings):
        language_model, server = make("llama", **(policy or {})), engine(**(facts or {}))
        vllm = sampler(language_model, server, **settings)
        vllm.follow(language_model, "policy", 0)
        return language_model, server, vllm

    return build


@pytest.fixture
def run(saved, tmp_path):
    """run(*engines, **more) -> a run of three steps sampled by the engines, in the folder `run`."""

    def go(*engines, **more):
        config = {
            "policy": {"name": "language_model", "model": str(saved("llama")), "max_new_tokens": 6},
            "sampler": {
                "name": "vllm",
                "servers": [one.url for one in engines],
                "folder": str(tmp_path),
                "patience": 0.0,
            },
            "prompts": [{"prompt": f"word {number}"} for number in range(12)],
            "prompts.held_out": 0.4,
            "rewards": [letters],
            "train": {"steps": 3, "groups_per_step": 2, "group_size": 3, "learning_rate": 0.02},
            "train.ahead": 0,
            "evaluation": {"prompts": 2, "every": 2},
            "output": tmp_path / "run",
            "quiet": True,
        }
        return train(**{**config, **more})

    return go


def letters(completions, **_):
    return [float(sum(map(str.isascii, text))) for text in completions]
