"""Steps: an episode in which every completion is an action, and every answer an observation."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groupwise.environment import ContextRefused, Player
from groupwise_agents.conversation import Conversation
from groupwise_agents.limits import Limits
from groupwise_agents.openenv.client import Connection


async def play_steps(
    player: Player,
    messages: Sequence[Mapping[str, Any]],
    connection: Connection,
    limits: Limits,
    *,
    action: Callable[[str], Any],
    observation: Callable[[Any], str],
) -> Conversation:
    """The player writes, `action` makes a step of it, `observation` what the player reads of its
    result, until the environment is done or there are no more turns.

    A text that `action` refuses by a ValueError, and a step that the server refuses, are answered
    by the error, and counted.
    """
    talk = Conversation([*messages])
    while True:
        try:
            talk.reply = await player(talk.messages)
        except ContextRefused:
            if talk.reply is None:
                raise
            return talk
        talk.columns["turns"] += 1
        talk.columns["calls"] += 1
        began = time.monotonic()
        try:
            result = await connection.step(action(talk.reply.text))
        except (ValueError, RuntimeError) as error:
            talk.columns["call_errors"] += 1
            connection.rewards.append(None)
            text, done = f"error: {error}", False
        else:
            text, done = observation(result.observation), bool(result.done)
        talk.columns["tool_seconds"] += time.monotonic() - began
        if done or talk.columns["turns"] == limits.turns:
            talk.ended = "done" if done else "turns"
            return talk
        text = await player.shortened(text, limits.answer_tokens)
        talk.answer(talk.reply, [{"role": "user", "content": text}])
