"""Stubs: the tests' side of a program: functions and classes that ask its process."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from groupwise_sandbox import event_loop, plain, references, streams
from groupwise_sandbox.handles import METHOD, Found, Kind, Made, Numbered, number_of
from groupwise_sandbox.peer import Peer, Reply, Request


class ArgumentError(BaseException):
    """Tests pass what cannot cross, and must not take it for an error of the program."""


class Stubs:
    """Makes stubs, and knows what the tests have passed to the program."""

    def __init__(self, classes: Sequence[str], exceptions: Sequence[str]) -> None:
        """classes: the program's, whose objects the tests use; without any, no object comes here.
        exceptions: classes of the program that the tests expect to be raised.
        """
        self._classes = classes
        self._known = {name: type(name, (Exception,), {}) for name in exceptions}
        self._names = {id(kind): name for name, kind in self._known.items()}
        self._peer, self._table = Peer(self._called), references.Table()
        self._made, self._found = dict[int, Made](), dict[int, Found]()
        self.broken: AssertionError | None = None
        """An assertion of the tests that failed in a callback, and which a program may hide."""

    def named(self, name: str) -> Any:
        """The stub of what a program defines by a name."""
        if name in self._known:
            return self._known[name]
        stub = Kind(name, self._ask, self._make) if name in self._classes else self._stub(name)
        self._names[id(stub)] = name  # it lives as long as the tests
        return stub

    def _stub(self, name: str) -> Callable[..., Any]:
        def stub(*args: Any, **named: Any) -> Any:
            return self._ask("call", stub, *args, **named)

        def in_place(*args: Any, **named: Any) -> None:
            self._change(stub, args, named)

        stub.__name__ = stub.__qualname__ = name
        stub.in_place = in_place  # type: ignore[attr-defined]
        return stub

    def _change(self, stub: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Call a function of the program, whose answer is what becomes of its arguments."""
        reply = self._asked("call", (stub, *args), named, changed=len(args))
        changed = self._given({**reply, "value": reply.get("args") or []})
        for mine, its in zip(args, changed, strict=False):
            if type(mine) is type(its) and isinstance(mine, list):
                mine[:] = its
            elif type(mine) is type(its) and isinstance(mine, dict | set):
                mine.clear()
                mine.update(its)

    def _ask(self, operation: str, *args: Any, **named: Any) -> Any:
        return self._given(self._asked(operation, args, named))

    def _make(self, *args: Any, **named: Any) -> Any:
        reply = self._asked("make", args, named)
        match reply.get("value"):
            case {"object": int(number)}:
                return self._made.setdefault(number, Made(self._ask, number))
        return self._given(reply)

    def _asked(
        self, operation: str, args: Sequence[Any], named: Mapping[str, Any], changed: int = 0
    ) -> Reply:
        try:
            arguments = {
                "args": [self._encoded(each) for each in args],
                "named": {key: self._encoded(each) for key, each in named.items()},
            }
        except plain.BoundError as error:
            raise RuntimeError(str(error)) from error
        except plain.NotPlainError as error:
            name = self._names.get(id(args[0]), "what a program gave")
            raise ArgumentError(f"{name} cannot be called with this: {error}") from error
        try:
            return self._peer.ask({"do": operation, "changed": changed, **arguments})
        except plain.NotPlainError as error:  # of files
            raise ArgumentError(str(error)) from error

    def _given(self, reply: Reply) -> Any:
        if "error" in reply:
            raise references.raised(reply, self._known)
        return self._decoded(reply["value"])

    def _called(self, request: Request) -> Reply:
        """Call a callback of the tests, for the program."""
        try:
            function = self._table.value(request["callback"])
            arguments = map(self._decoded, request["args"])
            named = {name: self._decoded(each) for name, each in request["named"].items()}
            return {"value": self._encoded(function(*arguments, **named))}
        except Exception as error:
            if isinstance(error, AssertionError):
                self.broken = self.broken or error
            return references.error_reply(error)

    def _encoded(self, value: Any) -> Any:
        return plain.encoded(value, self._reference)

    def _decoded(self, data: Any) -> Any:
        try:
            return plain.decoded(data, self._resolved)
        except plain.NotPlainError as error:  # no ValueError, which tests may expect of a program
            raise RuntimeError(str(error)) from error

    def _reference(self, value: Any) -> Any:
        """What stands for a value that is not plain data; None for one that is."""
        reference: Any = None
        if isinstance(value, Numbered):
            reference = {"object": number_of(value)}
        elif (name := self._names.get(id(value))) is not None:
            reference = {"name": name}
        elif (name := references.builtin_name(value)) is not None:
            reference = {"builtin": name}
        elif inspect.iscoroutine(value):
            reference = {"awaited": self._settled(value)}
        elif isinstance(value, Iterator):
            reference = {"stream": self._table.number(streams.Stream(value).take)}
        elif callable(value) and not isinstance(value, type):
            reference = references.described(self._table.number(value), value)
        return reference

    def _settled(self, coroutine: Any) -> Reply:
        try:
            return {"value": self._encoded(event_loop.settle(coroutine))}
        except Exception as error:
            return references.error_reply(error)

    def _resolved(self, kind: str, content: Any) -> Any:
        if kind == "method":
            return METHOD
        if kind == "function":
            return references.function_of(content, self._call_numbered)
        if kind == "awaited" and isinstance(content, dict):
            return references.awaitable(lambda: self._given(content))
        if kind == "stream" and isinstance(content, int):
            stream = Numbered(self._ask, content)
            return streams.drawn(lambda most: self._ask("take", stream, most))
        if kind == "object" and isinstance(content, int) and self._classes:
            return self._found.setdefault(content, Found(self._ask, content))
        raise plain.NotPlainError(f"an object, {kind!r:.60}, is not plain data")

    def _call_numbered(self, number: int, *args: Any, **named: Any) -> Any:
        return self._ask("call", Numbered(self._ask, number), *args, **named)
