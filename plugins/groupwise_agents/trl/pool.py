"""Pool: the objects of one environment class, constructed once and reset often."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from groupwise.kit.errors import UserError, first_line
from groupwise_agents.threads import in_thread
from groupwise_agents.trl.instance import Instance


class Lease:
    """Goes with the columns of an episode; the instance is free when nothing holds it any more.

    Rewards receive the object itself, at any time until the step has ended.
    """

    def __repr__(self) -> str:
        return "Lease()"


class Pool:
    """Instances of what a factory makes; a new one only where all others are in use.

    name: of the factory, for messages; tools: of the first instance, for their schemas. Constructs
    the first one. Raises UserError if that fails, or if it is no environment.
    """

    def __init__(self, factory: Callable[[], Any], name: str) -> None:
        self.factory = factory
        try:
            target = factory()
        except Exception as error:  # a user's code may raise anything
            problem = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"environment {name!r} cannot be constructed: {problem}") from error
        first = Instance(target)
        self.name, self.has_reward = first.name, first.has_reward
        self.tools = first.tools
        self._free = deque([first])

    async def take(self) -> Instance:
        """A free instance, else a new one, constructed in a thread: that may take its time."""
        if self._free:
            return self._free.popleft()
        return Instance(await in_thread(self.factory, self.name))

    def put(self, instance: Instance) -> None:
        """Take an instance back; one whose method still runs is abandoned."""
        if not instance.is_busy:
            self._free.append(instance)

    def lease(self, instance: Instance) -> Lease:
        """What holds an instance that `take` returned until it is dropped."""
        lease = Lease()
        weakref.finalize(lease, self.put, instance).atexit = False
        return lease
