"""Handles: what tests hold of a program's classes and objects; the program is asked for the rest.

Nothing that a program overrides is called here, and a handle equals nothing but itself: there is no
order and no arithmetic. Two kinds of objects differ:

- **`Made`** by the tests, which called a class of the program. They mean an object, so its length,
  items and truth are asked of the program, too.
- **`Found`**: what the program gave where plain data may have been meant. It must not pass for a
  string or a number that answers as the tests hope: it has no length, items or truth of its own,
  and no method that plain data has. `found.startswith(expected)` would tell the program what is
  expected, and let it say yes.
"""

from collections.abc import Callable, Iterator
from typing import Any

from groupwise_sandbox.references import builtin_name

METHOD = object()
"""Stands for an attribute that is a method."""
_PLAIN = (str, int, float, complex, bytes, list, tuple, range, set, dict)
PLAIN_METHODS = frozenset(n for kind in _PLAIN for n in dir(kind) if callable(getattr(kind, n)))
"""Of plain data."""
Ask = Callable[..., Any]
"""Asks a program for an operation of `groupwise_sandbox.objects`, with its arguments."""


class Numbered:
    """What a program has under a number."""

    __slots__ = ("_ask_program", "_number_there")

    def __init__(self, ask: Ask, number: int) -> None:
        object.__setattr__(self, "_ask_program", ask)
        object.__setattr__(self, "_number_there", number)


def number_of(value: Numbered) -> int:
    """The number of what a program has."""
    number: int = value._number_there  # type: ignore[attr-defined]  # it is set by `object`
    return number


class Found(Numbered):
    """An object that a program gave."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        value = attribute(self._ask_program, self, name)
        if name in PLAIN_METHODS and callable(value):
            raise AttributeError(f"{name!r} is not called of an object that a program gave")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask_program("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._ask_program("delattr", self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Found) and number_of(other) == number_of(self)

    def __hash__(self) -> int:
        return hash(number_of(self))

    def __str__(self) -> str:
        return self._ask_program("str", self)  # Python checks the type

    def __repr__(self) -> str:
        return self._ask_program("repr", self)

    def __format__(self, form: str) -> str:
        return format(str(self), form)


class Made(Found):
    """An object that the tests made."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return attribute(self._ask_program, self, name)

    def __bool__(self) -> bool:
        return self._ask_program("bool", self)

    def __len__(self) -> int:
        return self._ask_program("len", self)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ask_program("iter", self))

    def __next__(self) -> Any:
        values = self._ask_program("next", self)
        if not values:
            raise StopIteration
        return values[0]

    def __contains__(self, value: Any) -> bool:
        return bool(self._ask_program("contains", self, value))

    def __getitem__(self, key: Any) -> Any:
        return self._ask_program("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask_program("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask_program("delitem", self, key)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._ask_program("call", self, *args, **named)

    def __enter__(self) -> Any:
        entered = self._ask_program("enter", self)
        return self if entered == self else entered

    def __exit__(self, *error: object) -> bool:
        kind, words, _ = error
        own = kind if kind is None or builtin_name(kind) else Exception
        return bool(self._ask_program("exit", self, own, str(words)))


class Kind(type):
    """A class of a program. Its own attributes have names that a program is not likely to use."""

    _ask_program: Ask
    _make_object: Callable[..., Any]

    def __new__(cls, name: str, ask: Ask, make: Callable[..., Any]) -> "Kind":
        return super().__new__(cls, name, (), {"_ask_program": ask, "_make_object": make})

    def __init__(cls, name: str, ask: Ask, make: Callable[..., Any]) -> None:
        """ask: as of an object; make: an object, called with this class and its arguments."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return cls._make_object(cls, *args, **named)

    def __getattr__(cls, name: str) -> Any:
        return attribute(cls._ask_program, cls, name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls._ask_program("iter", cls))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Found) and cls._ask_program("isinstance", instance, cls) is True


def attribute(ask: Ask, owner: Any, name: str) -> Any:
    """An attribute of an object or a class; a method is called by its name."""
    if name[:2] == "__":
        raise AttributeError(f"a program is not asked for {name!r}")
    value = ask("attribute", owner, name)
    if value is not METHOD:
        return value

    def method(*args: Any, **named: Any) -> Any:
        return ask("method", owner, name, *args, **named)

    method.__name__ = method.__qualname__ = name
    return method
