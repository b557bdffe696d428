"""Tool: a function that a model can call, with the schema that its template shows."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from groupwise.kit.errors import UserError, first_line
from groupwise_agents.threads import in_thread

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ToolError(Exception):
    """Why a tool cannot answer a call (its arguments are wrong, say), in words for the model."""


class Unavailable(Exception):  # noqa: N818
    """A tool cannot answer any call, through no fault of the model (its server is gone, say).

    It fails the episode, which then has no reward and no gradient; any other exception of a tool is
    a message to the model.
    """


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model can call.

    name: by which a model calls it; schema: `{"type": "function", "function": {"name",
    "description", "parameters"}}`, which chat templates show; function: called with keyword
    arguments; a sync one in a thread of its own; types: by argument, what its values are checked
    and converted by; arguments without an entry are passed as they are.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]
    types: Mapping[str, TypeAdapter[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, function: "Callable[..., Any] | Tool") -> "Tool":
        """The tool that a function with type hints and a docstring is; a Tool is returned.

        The docstring is Google's: what the function does and, under `Args:`, each argument. Raises
        UserError if the function lacks any of it.
        """
        if isinstance(function, Tool):
            return function
        name = getattr(function, "__name__", None)
        if name is None:
            kind = type(function).__name__
            raise UserError(
                f"a tool is a function or a groupwise_agents.tool.Tool, received {kind}"
            )
        try:
            from transformers.utils import get_json_schema
        except ImportError as error:
            raise UserError(
                f"tools need an extra: pip install 'groupwise[agents]' ({error})"
            ) from error
        try:
            schema, hints = get_json_schema(function), get_type_hints(function)
        except Exception as error:  # its own errors, and what an annotation raises
            raise UserError(
                f"tool {name!r}: {first_line(error)}. A tool has type hints, and a docstring that "
                f"says what it does and describes each argument under `Args:`"
            ) from error
        parameters = inspect.signature(function).parameters
        if unnamed := [n for n, p in parameters.items() if p.kind not in BY_NAME]:
            raise UserError(
                f"tool {name!r}: models give arguments by name, which {unnamed[0]!r} does not take"
            )
        settings = ConfigDict(arbitrary_types_allowed=True)
        types = {name: TypeAdapter(hints[name], config=settings) for name in parameters}
        return cls(name=name, schema=schema, function=function, types=types)

    async def __call__(self, /, **arguments: Any) -> Any:
        """What the function returns. Raises ToolError, or whatever the function raises."""
        checked = self._checked(arguments)
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**checked)
        value = await in_thread(partial(self.function, **checked), f"tool {self.name}")
        return await value if inspect.isawaitable(value) else value

    def _checked(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as the function takes them. Raises ToolError."""
        try:
            inspect.signature(self.function).bind(**arguments)
        except TypeError as error:
            raise ToolError(str(error)) from error
        checked = {}
        for name, value in arguments.items():
            try:
                own = self.types.get(name)
                checked[name] = value if own is None else own.validate_python(value)
            except ValidationError as error:
                raise ToolError(f"{name}: {error.errors()[0]['msg']}") from error
        return checked
