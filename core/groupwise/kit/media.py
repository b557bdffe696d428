"""Media: classes of values, such as pictures, that a package knows how to copy, compare and store.

The core knows none. An entry point of the group `groupwise.media` has the name of a class, and
names its `Medium`:

    [project.entry-points."groupwise.media"]
    "my_package.sounds.Sound" = "my_package.sounds:SOUNDS"

It is for values of this class and of those that inherit from it, and imports no heavy package:
all are loaded when the first row is read. Values of other classes are shared, and compared by
`==`.
"""

from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from groupwise.kit.terminal import say

GROUP = "groupwise.media"


class Medium(Protocol):
    """What the core does with the values of a class."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a row whose values, one or a list of them, belong to its prompt."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Those of the files that `read` reads."""

    def shared(self, value: Any) -> Any:
        """A copy that shares its content with the value until one of them is changed."""

    def own(self, value: Any) -> Any:
        """A copy with a content of its own."""

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two values have the same content."""

    def content(self, value: Any) -> tuple[str, bytes]:
        """Its form in words, and its content: equal for equal values in every process."""

    def write(self, value: Any, path: Path, *, small: bool) -> Path:
        """Write a file that `read` reads; path: of the file without its suffix; small: the file is
        to be small, rather than to hold all of the content. Returns the whole path."""

    def read(self, path: Path) -> Any:
        """The value of a file. Raises OSError where it cannot be read."""


def medium_of(value: Any) -> Medium | None:
    """The medium of a value, None for one that no package knows."""
    kind: Any = type(value)  # mypy takes no class for hashable
    return _of_class(kind)


@cache
def columns() -> tuple[str, ...]:
    """The columns of all media."""
    return tuple(name for medium in _media().values() for name in medium.columns)


def write(value: Any, path: Path, *, small: bool = False) -> Path:
    """Write a value with a method `save`: as its medium does, or as a PNG where it has none. path:
    of the file without its suffix; small: see `Medium.write`. Returns the whole path."""
    if medium := medium_of(value):
        return medium.write(value, path, small=small)
    whole = path.with_name(f"{path.name}.png")
    value.save(whole)
    return whole


def read(path: Path) -> Any:
    """The value of a file, by its suffix. Raises OSError where it cannot be read."""
    for medium in _media().values():
        if path.suffix in medium.suffixes:
            return medium.read(path)
    raise OSError(f"no installed package reads {path.suffix or 'such files'}")


@cache
def _of_class(kind: type) -> Medium | None:
    names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    return next((_media()[name] for name in names if name in _media()), None)


@cache
def _media() -> dict[str, Medium]:
    """Those of this environment, by the names of their classes, in an order that does not depend on
    that of packages. One that cannot be loaded never stops the others."""
    media = dict[str, Medium]()
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            media[point.name] = point.load()
        except Exception as error:  # third-party code may raise anything at import
            say(f"warning: {point.name} is no medium: {point.value} cannot be loaded: {error}")
    return media
