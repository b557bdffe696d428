"""Environments as one writes them for an OpenEnv server, and the server on this machine."""

import threading
import time
from contextlib import contextmanager
from random import Random

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

WORDS = ("cat", "dog", "owl", "hen")
open_sessions: list[object] = []


def all_closed():
    """Whether no session is left, once the server has seen that their connections are closed."""
    until = time.monotonic() + 30
    while open_sessions and time.monotonic() < until:
        time.sleep(0.01)
    return not open_sessions


class Guess(Action):
    word: str


class Marks(Observation):
    marks: str


class Words(Environment):
    """Guess a word; a guess has a reward only if it is right. It is a word by the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        open_sessions.append(self)

    def reset(self, seed=None, episode_id=None, word=None):
        self.secret = word or Random(seed).choice(WORDS)
        return Marks(marks=f"It begins with {self.secret[0]}.")

    def step(self, action, timeout_s=None, **_):
        if action.word == "bug":
            raise KeyError("a bug of the environment")
        if action.word == self.secret:
            return Marks(marks="solved", done=True, reward=1.0)
        return Marks(marks="wrong", reward=0.25 if action.word[0] == self.secret[0] else None)

    @property
    def state(self):
        return State()

    def close(self):
        open_sessions.remove(self)


class WordTools(MCPEnvironment):
    """The same with a tool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("words")

        @mcp.tool
        def guess(word: str) -> str:
            """Guess the word."""
            if len(word) != 3:
                raise ValueError("it has three letters")
            return "solved" if word == self.secret else "wrong"

        super().__init__(mcp)
        self.secret = ""
        open_sessions.append(self)

    def reset(self, seed=None, episode_id=None, **_):
        self.secret = Random(seed).choice(WORDS)
        return Observation()

    def _step_impl(self, action, timeout_s=None, **_):
        raise TypeError("only calls of tools are steps")

    async def step_async(self, action, timeout_s=None, **_):
        observation = await super().step_async(action, timeout_s=timeout_s)
        if isinstance(observation, CallToolObservation) and action.arguments["word"] == self.secret:
            observation.reward, observation.done = 1.0, True
        return observation

    @property
    def state(self):
        return State()

    def close(self):
        super().close()
        if self in open_sessions:
            open_sessions.remove(self)


@contextmanager
def served(environment, action, observation, *, sessions=8):
    """The address of a server that runs in a thread."""
    app = create_fastapi_app(environment, action, observation, max_concurrent_envs=sessions)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    ready = threading.Event()
    started = server.startup

    async def startup(sockets=None):
        await started(sockets)
        ready.set()

    server.startup = startup
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def words(**options):
    return served(Words, Guess, Marks, **options)


def word_tools(**options):
    return served(WordTools, CallToolAction, Observation, **options)
