"""Overrides: whether a part's methods are those of its base class, or others of their names."""

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
NAMED = frozenset({"groupwise.environment"})
"""Modules with methods of such common names (`shown`, `columns`) that the names of arguments are
needed to tell them from helpers."""


def problem_of(part: Any, base: type) -> str | None:
    """What is wrong with a part that defines something else by the name of a method of its base:
    a helper of the author's own, say. None if nothing is.

    A method fits if it takes what the base's takes; it may take more that has a default. In the
    modules of `NAMED` its arguments have the same names, too; those that begin with an underscore
    fit any, and so do all of an abstract method, which nobody overrides by accident.
    """
    kind: type = type(part)
    for owner, name, method in _methods(kind, base):
        own = getattr(part, name)
        if getattr(own, "__func__", own) is method:
            continue
        theirs = f"`{owner.__name__}.{name}{_signature(method, is_bound=False)}`"
        if not callable(own):
            problem = f"`{kind.__name__}.{name}` is {own!r:.60} and hides {theirs}"
        elif inspect.iscoroutinefunction(own) and not inspect.iscoroutinefunction(method):
            problem = f"`{kind.__name__}.{name}` is async and overrides {theirs}, which is not"
        elif not _fits(own, method):
            problem = f"`{kind.__name__}.{name}{_signature(own)}` overrides {theirs}"
        else:
            continue
        return (
            f"{problem}, which a run calls; rename it if it is your own, or take the same arguments"
        )
    return None


@lru_cache  # a run makes many parts of few kinds
def _methods(kind: type, base: type) -> Sequence[tuple[type, str, Callable[..., Any]]]:
    """The public methods that a kind of part has of its base, and of others in the base's module,
    with the class that defines each; not those whose signature is open."""
    methods = []
    for owner in kind.__mro__:
        if owner.__module__ != base.__module__:
            continue
        for name, value in vars(owner).items():
            method = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            parameters = inspect.signature(method).parameters.values()
            if not any(each.kind in OPEN for each in parameters):
                methods.append((owner, name, method))
    return methods


def _signature(method: Callable[..., Any], *, is_bound: bool = True) -> str:
    """The names that a method takes."""
    parameters = inspect.signature(method).parameters.values()
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return str(inspect.Signature(bare if is_bound else bare[1:]))


def _fits(own: Callable[..., Any], method: Callable[..., Any]) -> bool:
    """Whether a bound method can be called as the base's is, which is not bound."""
    try:
        takes = inspect.signature(own)
    except ValueError:  # of a built-in type
        return True
    _, *theirs = inspect.signature(method).parameters.values()
    by_position = [each for each in theirs if each.kind in BY_POSITION]
    by_name = {each.name: None for each in theirs if each.kind is each.KEYWORD_ONLY}
    try:
        takes.bind(*by_position, **by_name)
    except TypeError:
        return False
    if method.__module__ not in NAMED or getattr(method, "__isabstractmethod__", False):
        return True
    named = [each for each in takes.parameters.values() if each.kind in BY_POSITION]
    return all(
        ours.name == each.name or ours.name.startswith("_")
        for ours, each in zip(named, by_position, strict=False)
    )
