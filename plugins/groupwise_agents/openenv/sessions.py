"""Sessions: episodes with OpenEnv's ResourceSessions, which may be of any environment."""

from typing import Any

from groupwise.environment import Player
from groupwise.prompt_source import Row
from groupwise_agents.conversation import Conversation, converse, messages_of
from groupwise_agents.limits import Limits
from groupwise_agents.openenv.tools import tools_of_session
from groupwise_agents.ordered import OrderedToolbox
from groupwise_agents.threads import in_thread


async def play_session(
    factory: Any, row: Row, player: Player, limits: Limits, seed: int
) -> tuple[Conversation, float | None]:
    """An episode with a session of the factory, and its reward: what `verify` forwards, else the
    last that a tool stated; None, which is not 0, if there is none.

    The session begins with its own messages, and with the row's prompt if it has none. Its methods
    are sync and run in threads; it is closed in any case.
    """
    session = await in_thread(lambda: factory.create(task=row, seed=seed), "session")
    try:
        rewards = list[float | None]()
        own = await in_thread(lambda: [*session.initial_messages()], "session")
        tools = await in_thread(lambda: tools_of_session(session, rewards), "session")
        toolbox = OrderedToolbox(tools, deadline=limits.deadline)
        talk = await converse(player, own or messages_of(row), toolbox, limits)
        transcript = [*talk.messages, talk.reply.message] if talk.reply else talk.messages
        result = await in_thread(lambda: session.verify(transcript), "session")
        stated = [reward for reward in rewards if reward is not None]
        if result.env_reward is not None:
            return talk, float(result.env_reward)
        return talk, stated[-1] if stated else None
    finally:
        await in_thread(session.close, "session")
