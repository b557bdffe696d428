"""The word game as an OpenEnv server.

uvicorn --app-dir examples word_game.server:app --port 8010
"""

import random
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Action, Observation, State
from word_game.game import WordGame
from word_game.words import WORDS

SESSIONS = 512
"""Episodes that may be played at once: all of a step, or of an evaluation."""


class WordServer(MCPEnvironment):
    """A session is a game; a guess is a call of the tool, and ends the game if it is right."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server, self.game = FastMCP("word game"), WordGame()
        server.tool(self.game.guess)
        super().__init__(server)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Observation:
        self.game.reset(random.Random(seed).choice(WORDS))
        return Observation()

    async def step_async(self, action: Action, timeout_s: float | None = None, **_: Any) -> Any:
        observation = await super().step_async(action, timeout_s=timeout_s)
        if isinstance(action, CallToolAction):
            observation.reward = self.game.get_reward()
            observation.done = self.game.solved or not self.game.left
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise TypeError("a step is a call of a tool")

    @property
    def state(self) -> State:
        return State()


app = create_fastapi_app(WordServer, CallToolAction, Observation, max_concurrent_envs=SESSIONS)
