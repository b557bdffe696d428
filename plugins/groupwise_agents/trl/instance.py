"""Instance: an object of a class for TRL's `environment_factory`, as an episode uses it."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

from groupwise.environment import EpisodeEnded
from groupwise.kit.errors import UserError
from groupwise_agents.content import KINDS, Content, content_of, is_part, is_picture, of_parts
from groupwise_agents.threads import in_thread
from groupwise_agents.tool import Tool, Unavailable

RESET, REWARD = "reset", "get_reward"


class Instance:
    """One object and its methods, which share its state and are called one at a time.

    tools: its public methods but for `reset` and `get_reward`; errors: how many of their calls
    raised since the reset; resets: how many there were; is_busy: whether a method still runs, also
    one that nothing waits for any longer.

    Raises UserError if its class has no `reset`, or a public method that is not a tool.
    """

    def __init__(self, target: Any) -> None:
        self.target, self.name = target, type(target).__name__
        # As TRL lists them: functions of the class, so that no property is evaluated.
        members = dict(inspect.getmembers(type(target), inspect.isfunction))
        if RESET not in members:
            raise UserError(
                f"environment {self.name!r} has no method `reset`, which begins an episode: "
                f"`def reset(self, **row)`, and returns what is appended to the prompt, or None"
            )
        self.has_reward = REWARD in members
        self.errors = self.resets = 0
        self._alone = threading.Lock()
        names = [n for n in members if n not in (RESET, REWARD) and not n.startswith("_")]
        self.tools = [self._tool(getattr(target, name)) for name in names]
        self._takes_seed = "seed" in inspect.signature(target.reset).parameters

    @property
    def is_busy(self) -> bool:
        return self._alone.locked()

    async def reset(self, row: Mapping[str, Any], seed: int, deadline: float) -> Any:
        """What `reset` returns for a row.

        seed: for a `reset` that names it, unless the row has a column of this name. Raises
        UserError if `reset` does not take all columns, and what it raises.
        """
        columns = {**({"seed": seed} if self._takes_seed else {}), **row}
        try:
            inspect.signature(self.target.reset).bind(**columns)
        except TypeError as error:
            raise UserError(
                f"{self.name}.reset: {error}. It receives all columns of a row by name; let it "
                f"take `**columns`"
            ) from error
        self.errors = 0
        self.resets += 1
        return await self._within(deadline, self.target.reset, columns)

    async def reward(self, deadline: float) -> float | None:
        """What `get_reward` returns; None without that method."""
        value = (
            await self._within(deadline, self.target.get_reward, {}) if self.has_reward else None
        )
        return None if value is None else float(value)

    async def _within(
        self, deadline: float, method: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> Any:
        try:
            async with asyncio.timeout(deadline):
                return await self._called(method, arguments)
        except TimeoutError as error:
            problem = f"{self.name}.{method.__name__} took more than {deadline:g} s"
            raise Unavailable(problem) from error

    def _tool(self, method: Callable[..., Any]) -> Tool:
        """A method as a tool, which answers as TRL's trainer does: content blocks as they are, of
        anything else its `str`, and that of `{"error": ...}` if it raises."""

        @wraps(method)
        async def call(**arguments: Any) -> Content:
            try:
                return content(await self._called(method, arguments))
            except (EpisodeEnded, Unavailable):
                raise
            except Exception as error:
                self.errors += 1
                return str({"error": str(error)})

        return replace(Tool.of(method), function=call)

    async def _called(self, method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(method):
            with self._exclusively():
                return await method(**arguments)

        def call() -> Any:
            with self._exclusively():
                return method(**arguments)

        return await in_thread(call, f"{self.name}.{method.__name__}")

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        if not self._alone.acquire(blocking=False):
            raise RuntimeError("an earlier call has not ended")
        try:
            yield
        finally:
            self._alone.release()


def content(value: Any) -> Content:
    """What a method returned as the content of a message: a picture and content blocks as they are,
    anything else as its `str`.

    Raises Unavailable for blocks that are neither text nor pictures.
    """
    is_blocks = isinstance(value, list) and all(
        isinstance(block, Mapping) and "type" in block for block in value
    )
    if is_picture(value) or not (value and is_blocks):
        return content_of(value) if is_picture(value) else str(value)
    if odd := next((block["type"] for block in value if block["type"] not in KINDS), None):
        raise Unavailable(
            f"an environment returned a content block of type {odd!r}; policies of the run read "
            f"text and pictures"
        )
    return of_parts(value) if all(map(is_part, value)) else content_of(value)
