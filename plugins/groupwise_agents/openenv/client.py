"""Clients: connections to an OpenEnv server, one for each episode."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from groupwise.kit.errors import UserError, first_line
from groupwise_agents.tool import Unavailable

FULL = ("CAPACITY_REACHED", "at capacity")
"""In the errors of a server that takes no further session."""
PATIENCE = 5.0
"""Seconds in which a session of an earlier episode may still be closing."""
CLOSING = 10.0
"""Seconds that a connection has to be closed."""


class _ServerFullError(Exception):
    """The server takes no further session."""


class Clients:
    """Opens a client for each episode, and closes it with the episode, also after an error.

    make: makes a client that is not yet connected, an `openenv` EnvClient; deadline: seconds for
    each request.
    """

    def __init__(self, make: Callable[[], Any], deadline: float) -> None:
        self.make, self.deadline = make, deadline
        self._closing = set[asyncio.Task[None]]()

    @asynccontextmanager
    async def episode(self, options: Mapping[str, Any]) -> AsyncIterator["Connection"]:
        """A connection that was reset with these options.

        Raises Unavailable if the server is away, UserError if it takes no further session.
        """
        connection = await self._begun(options)
        try:
            yield connection
        finally:
            await self._end(connection)

    async def _begun(self, options: Mapping[str, Any]) -> "Connection":
        until = time.monotonic() + PATIENCE
        while True:
            connection = Connection(self.make(), self.deadline)
            try:
                await connection.begin(options)
                return connection
            except _ServerFullError as error:
                await self._end(connection)
                if time.monotonic() > until:
                    raise UserError(
                        f"environment openenv: {error}. All episodes of a step are played at "
                        f"once, each in a session of its own: start the server with "
                        f"`max_concurrent_envs` of at least train.groups_per_step x "
                        f"train.group_size, or set environment.episodes to what it has"
                    ) from error
            except BaseException:
                await self._end(connection)
                raise
            await asyncio.sleep(0.1)

    async def _end(self, connection: "Connection") -> None:
        # In a task of its own: a cancelled episode must not leave its session open.
        closing = asyncio.create_task(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def close(self) -> None:
        """Wait for connections that are being closed."""
        await asyncio.gather(*self._closing)

    def check(self, ask: Callable[["Connection"], Coroutine[Any, Any, Any]] | None) -> Any:
        """Make a first connection, before the run; returns what an async function does of it.

        Raises UserError if the server is away.
        """

        async def first() -> Any:
            connection = Connection(self.make(), self.deadline)
            try:
                with _telling_full():
                    await connection.request(connection.client.connect)
                    return await ask(connection) if ask is not None else ()
            finally:
                await connection.close()

        try:
            return _in_own_loop(first())
        except (Unavailable, _ServerFullError) as error:
            raise UserError(f"environment openenv: {error}; is the server running?") from error


class Connection:
    """A client in an episode.

    begun: the `StepResult` of the reset; rewards: of the steps so far, None where the server gave
    none; is_lost: whether an answer was not waited for: the server's next session is another one.
    """

    def __init__(self, client: Any, deadline: float) -> None:
        self.client, self.deadline = client, deadline
        self.begun: Any = None
        self.rewards: list[float | None] = []
        self.is_lost = False

    async def begin(self, options: Mapping[str, Any]) -> None:
        """Connect and reset. Raises _ServerFullError too."""
        with _telling_full():
            await self.request(self.client.connect)
            self.begun = await self.request(lambda: self.client.reset(**options))

    async def step(self, action: Any) -> Any:
        """The `StepResult` of a step; its reward is kept.

        Raises RuntimeError if the server refuses the action, or its environment raises.
        """
        result = await self.request(lambda: self.client.step(action))
        self.rewards.append(None if result.reward is None else float(result.reward))
        return result

    @property
    def reward(self) -> float | None:
        """The sum of the rewards of all steps; None, which is not 0, if no step has one."""
        scored = [reward for reward in self.rewards if reward is not None]
        return sum(scored) if scored else None

    async def request(self, make: Callable[[], Any]) -> Any:
        """The answer to a request of the client.

        Raises Unavailable if none comes, and RuntimeError for an error that the server reports.
        """
        if self.is_lost:
            raise Unavailable("the session was lost: an earlier answer did not come in time")
        try:
            async with asyncio.timeout(self.deadline):
                return await make()
        except TimeoutError as error:
            self.is_lost = True
            problem = f"the server did not answer within {self.deadline:g} s"
            raise Unavailable(problem) from error
        except asyncio.CancelledError:
            self.is_lost = True
            raise
        except RuntimeError:
            raise
        except Exception as error:  # of sockets, HTTP and JSON
            self.is_lost = True
            url = getattr(self.client, "base_url", None) or "the server"
            problem = f"{url} cannot be reached ({type(error).__name__}: {first_line(error)})"
            raise Unavailable(problem) from error

    async def close(self) -> None:
        """Close the client; the episode is over, so an error changes nothing."""
        try:
            async with asyncio.timeout(CLOSING):
                await self.client.close()
        except Exception:
            pass


@contextmanager
def _telling_full() -> Iterator[None]:
    """Raises _ServerFullError for the error of a full server, which it has before a first step."""
    try:
        yield
    except RuntimeError as error:
        if any(each in str(error) for each in FULL):
            raise _ServerFullError(first_line(error)) from error
        raise


def _in_own_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns or raises, also called in a notebook, whose thread has a loop."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome[:] = [asyncio.run(coroutine), None]
        except Exception as error:
            outcome[:] = [None, error]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    value, error = outcome
    if error is not None:
        raise error
    return value
