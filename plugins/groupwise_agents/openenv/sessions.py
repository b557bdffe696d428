"""Sessions: episodes with OpenEnv's ResourceSessions, which may be of any environment."""

from typing import Any

from groupwise.environment import Player
from groupwise.kit.copies import copied, kept
from groupwise.prompt_source import Row
from groupwise_agents.conversation import Conversation, converse, messages_of
from groupwise_agents.limits import Limits
from groupwise_agents.openenv.resource import Resource
from groupwise_agents.openenv.tools import tools_of_session
from groupwise_agents.ordered import OrderedToolbox


async def play_session(
    factory: Any, row: Row, player: Player, limits: Limits, seed: int
) -> tuple[Conversation, float | None]:
    """An episode with a session of the factory, and its reward: what `verify` forwards, else the
    last that a tool stated; None, which is not 0, if there is none.

    The session begins with its own messages, and with the row's prompt if it has none. It is closed
    in any case. Raises Unavailable if a call was abandoned, and another should follow.
    """
    resource = await Resource.made(lambda: factory.create(task=row, seed=seed))
    session = resource.session
    try:
        own = kept(await resource.call(lambda: [*session.initial_messages()]))
        tools = await resource.call(lambda: tools_of_session(resource))
        toolbox = OrderedToolbox(tools, deadline=limits.deadline)
        talk = await converse(player, own or messages_of(row), toolbox, limits)
        result = await resource.call(lambda: session.verify(copied(talk.transcript)))
        if result.env_reward is not None:
            return talk, float(result.env_reward)
        return talk, resource.reward
    finally:
        await resource.close()
