"""Objects: the program's side of tests that are code: what it answers, and what it keeps."""

import inspect
import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from groupwise_sandbox import event_loop, plain, references, streams
from groupwise_sandbox.peer import Peer, Reply, Request

_CONTAINERS = (list, tuple, dict, set, frozenset, bytes, bytearray, deque)


class _Method:
    """Says that an attribute is a method."""


def _attribute(owner: Any, name: str) -> Any:
    value = getattr(owner, name)
    return _Method() if inspect.isroutine(value) else value


def _following(owner: Any) -> list[Any]:
    """The next value of an iterator, as a list; an empty one at its end."""
    try:
        return [next(owner)]
    except StopIteration:
        return []


def _exited(owner: Any, kind: Any, words: Any) -> Any:
    error = None if kind is None else kind(words)
    return type(owner).__exit__(owner, kind, error, None)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "call": lambda function, *args, **named: function(*args, **named),
    "make": lambda kind, *args, **named: kind(*args, **named),
    "method": lambda owner, name, *args, **named: getattr(owner, name)(*args, **named),
    "attribute": _attribute,
    "setattr": setattr,
    "delattr": delattr,
    "isinstance": isinstance,
    "take": lambda stream, most: stream.take(most),
    "bool": bool,
    "contains": operator.contains,
    "delitem": operator.delitem,
    "enter": lambda owner: type(owner).__enter__(owner),
    "exit": _exited,
    "getitem": operator.getitem,
    "iter": iter,
    "len": len,
    "next": _following,
    "repr": repr,
    "setitem": operator.setitem,
    "str": str,
}
"""What tests may ask of a program."""


class Objects:
    """Answers what tests ask, with plain data and references to what stays here."""

    def __init__(
        self, module: types.ModuleType, *, refers: bool, modules: Collection[str] = ()
    ) -> None:
        """modules: those of the program's files.
        refers: whether values may be references: functions, iterators, objects; without, only
        plain data is answered."""
        self._module, self._refers = module, refers
        self._own = {module.__name__, *modules}
        self._table, self._peer = references.Table(), Peer(self.answer)

    def serve(self) -> None:
        """Answer requests until no more come."""
        self._peer.serve()

    def answer(self, request: Request) -> Reply:
        """The reply to a request: {"value"}, or what was raised; with {"args"}, the arguments after
        it, where `changed` asks for them."""
        try:
            arguments = [self._decoded(each) for each in request["args"]]
            named = {name: self._decoded(each) for name, each in request["named"].items()}
            value = OPERATIONS[request["do"]](*arguments, **named)
            if request.get("changed"):
                return {"value": None, "args": self._encoded(arguments[-request["changed"] :])}
            if request["do"] == "make" and self._is_own(value):  # be it a list, too
                return {"value": {"object": self._table.number(value)}}
            return {"value": self._encoded(value)}
        except BaseException as error:
            return references.error_reply(error)

    def _encoded(self, value: Any) -> Any:
        if not self._refers and inspect.iscoroutine(value):
            value = event_loop.settle(value)
        return plain.encoded(value, self._reference if self._refers else lambda _: None)

    def _reference(self, value: Any) -> Any:
        """What stands for a value that is not plain data; None for one that is."""
        reference: Any = None
        if isinstance(value, _Method):
            reference = {"method": ""}
        elif inspect.iscoroutine(value):
            reference = {"awaited": self._settled(value)}
        elif isinstance(value, Iterator):
            reference = {"stream": self._table.number(streams.Stream(value))}
        elif references.is_function(value):
            reference = references.described(self._table.number(value), value)
        elif self._is_own(value) and not isinstance(value, _CONTAINERS):
            reference = {"object": self._table.number(value)}
        return reference

    def _is_own(self, value: Any) -> bool:
        """Whether a value is of a class that the program defines."""
        return type(value).__module__.partition(".")[0] in self._own

    def _settled(self, coroutine: Any) -> Reply:
        try:
            return {"value": self._encoded(event_loop.settle(coroutine))}
        except BaseException as error:
            return references.error_reply(error)

    def _decoded(self, data: Any) -> Any:
        return plain.decoded(data, self._resolved)

    def _resolved(self, kind: str, content: Any) -> Any:
        if kind == "object":
            return self._table.value(content)
        if kind == "name":
            return self._named(content)
        if kind == "builtin":
            return references.builtin(content)
        if kind == "function":
            return references.function_of(content, self._called_back)
        if kind == "stream":
            return streams.drawn(lambda most: self._called_back(content, most))
        if kind == "awaited":
            return references.awaitable(lambda: self._given(content))
        raise plain.NotPlainError(f"not plain data: {kind!r:.60}")

    def _named(self, name: str) -> Any:
        """What the program defines by a name."""
        target: Any = self._module
        if hasattr(self._module.__dict__.get("Solution"), name):
            name = f"Solution.{name}"  # where LeetCode has its functions
        for part in name.split("."):
            target = getattr(target, part)
            if isinstance(target, type) and "." in name:
                target = target()  # `Solution.method`: of a new object
        return target

    def _called_back(self, number: int, *args: Any, **named: Any) -> Any:
        """Call a function of the tests."""
        arguments = {
            "args": [self._encoded(each) for each in args],
            "named": {name: self._encoded(each) for name, each in named.items()},
        }
        return self._given(self._peer.ask({"callback": number, **arguments}))

    def _given(self, reply: Reply) -> Any:
        if "error" in reply:
            raise references.raised(reply)
        return self._decoded(reply["value"])
