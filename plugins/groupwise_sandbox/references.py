"""References: what stands on the channel for a value that is not plain data.

A program's object, function or iterator stays in its process, and so does a callback or an iterator
of the tests: the other side gets a number, by which it asks for what it needs. What each kind is:

    {"object": n}       an object of a class of the program
    {"function": [...]} a function of the program, or a callback of the tests: `Described`
    {"stream": n}       an iterator of either side, drawn from as its values are needed
    {"awaited": reply}  what a coroutine came to: it has been awaited where it was made
    {"method": ""}      an attribute is a method, to be called by its name
    {"name": text}      what the program defines by this name
    {"builtin": text}   a function, type or exception of Python's own
"""

import builtins
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any

from groupwise_sandbox.plain import BoundError, NotPlainError

MOST = 10_000
"""Values of one side that the other may hold a number of."""


class Table:
    """The values of one side that the other one has a number of, which it keeps."""

    def __init__(self) -> None:
        self._values, self._numbers = list[Any](), dict[int, int]()

    def number(self, value: Any) -> int:
        """The number of a value, the same one each time. Raises BoundError for too many."""
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        if len(self._values) == MOST:
            raise BoundError(f"more than {MOST:,} objects, functions and iterators")
        self._values.append(value)  # it is kept, so no other value can have its id
        self._numbers[id(value)] = len(self._values) - 1
        return len(self._values) - 1

    def value(self, number: Any) -> Any:
        """Raises NotPlainError where there is none."""
        if isinstance(number, int) and 0 <= number < len(self._values):
            return self._values[number]
        raise NotPlainError(f"no object has the number {number!r:.20}")


def described(number: int, function: Callable[..., Any]) -> Mapping[str, Any]:
    """A reference to a function: its number, name and docstring, and whether it is async."""
    name, words = getattr(function, "__name__", None), getattr(function, "__doc__", None)
    named = [each if isinstance(each, str) else None for each in (name, words)]
    return {"function": [number, *named, inspect.iscoroutinefunction(function)]}


def function_of(content: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that stands for one of the other side; call: it, with its number first.

    Raises NotPlainError for what `described` has not written.
    """
    try:
        number, name, words, is_async = content
    except (TypeError, ValueError) as error:
        raise NotPlainError("not a function") from error

    def function(*args: Any, **named: Any) -> Any:
        return call(number, *args, **named)

    async def asynchronous(*args: Any, **named: Any) -> Any:
        return await call(number, *args, **named)

    made = asynchronous if is_async is True else function
    made.__name__ = made.__qualname__ = name if isinstance(name, str) else "function"
    made.__doc__ = words if isinstance(words, str) else None
    return made


async def awaitable(give: Callable[[], Any]) -> Any:
    """A coroutine that has been awaited on the other side; give: what it came to, or raises."""
    return give()


def is_function(value: Any) -> bool:
    """Whether a value is a function, and nothing besides."""
    is_cached = type(value).__name__ == "_lru_cache_wrapper" and type(value).__module__ in _CACHES
    return inspect.isroutine(value) or isinstance(value, partial | MethodType) or is_cached


_CACHES = ("functools",)


def builtin_name(value: Any) -> str | None:
    """The name of a function, type or exception of Python's own."""
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and callable(value) and _BUILTINS.get(name) is value:
        return name
    return None


def builtin(name: Any) -> Any:
    """Raises NotPlainError for an unknown name."""
    if not isinstance(name, str) or name not in _BUILTINS:
        raise NotPlainError(f"no builtin has the name {name!r:.60}")
    return _BUILTINS[name]


_BUILTINS: Mapping[str, Any] = {n: v for n, v in vars(builtins).items() if callable(v)}


def error_reply(error: BaseException) -> dict[str, Any]:
    """What is raised, as the other side gets it: in words, and the names of its classes.

    An assertion goes without words, which may say what the tests expect; and a value that cannot
    cross is no ValueError, which tests may expect of a program.
    """
    if isinstance(error, AssertionError):
        error = AssertionError()
    elif isinstance(error, NotPlainError):
        error = RuntimeError(str(error))
    kinds = [each.__name__ for each in type(error).__mro__]
    return {"error": f"{type(error).__name__}: {error}"[:1000], "kinds": kinds}


def raised(
    reply: Mapping[str, Any], known: Mapping[str, type[Exception]] | None = None
) -> Exception:
    """The exception of the other side, as one of Python's own or of those that are known.

    An end of iteration is none, since it would end a loop of the tests that has more to try.
    """
    words = str(reply["error"])
    kinds = reply.get("kinds")
    names = [each for each in kinds if isinstance(each, str)] if isinstance(kinds, list) else []
    own = [known[each] for each in names if known and each in known]
    python = [kind for each in names if (kind := _exception(each)) is not None]
    if {StopIteration, StopAsyncIteration} & {*python}:
        return RuntimeError(words)
    message = words.partition(": ")[2]
    try:
        if own and python:  # the tests may expect it by either name
            return type(own[0].__name__, (own[0], python[0]), {})(message)
        return (own or python)[0](message)
    except (IndexError, TypeError):  # none, or one that is made of more than words
        return RuntimeError(words)


def _exception(name: str) -> type[Exception] | None:
    kind = _BUILTINS.get(name)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None
