"""Crossing: files that tests and a program show each other, as contents in messages.

Each side has a folder of its own, so a program finds there what a call names, and nothing else of
the tests; what it changes goes back with the answer, where it replaces only what was named to it,
what is new, and what came from it before; and nothing that the tests have written since.
"""

import base64
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from groupwise_sandbox.plain import NotPlainError
from groupwise_sandbox.view import FOLDER

MOST = 2 << 20
"""Bytes of files that cross with one message."""
_LONGEST = 1000
"""Characters of a text that may be a path."""

Message: TypeAlias = Mapping[str, Any]
Contents: TypeAlias = Mapping[str, str | None]
"""By their names in the folder, in base64; a folder's name ends in "/"; None: it was removed."""


_NO_PATHS = ("do", "name")
"""Parts of a message that say which function of a program is called."""


class Files(ABC):
    """The files of one side."""

    def __init__(self, here: str) -> None:
        """here: the path of this side's folder."""
        self._here = here

    @abstractmethod
    def outgoing(self, message: Message) -> Message:
        """A message to the other side, with files. Raises NotPlainError and OSError."""

    @abstractmethod
    def incoming(self, message: Message) -> Message:
        """A message of the other side, after its files were written. Raises ValueError, OSError."""

    def know(self) -> None:  # noqa: B027
        """Take what is there for known to the other side."""

    def name(self, text: str) -> str | None:
        """The name in the folder of the path that a text is, or None."""
        if not text or len(text) > _LONGEST or "\0" in text:
            return None
        path = os.path.normpath(self.path(text))
        return path[len(self._here) + 1 :] if path.startswith(f"{self._here}/") else None

    def path(self, name: str) -> Path:
        return Path(self._here, name)

    def below(self, name: str) -> Iterator[str]:
        """The names of a file or folder, and of all below it; symbolic links are left out."""
        path = self.path(name)
        try:
            mode = path.lstat().st_mode
        except OSError:
            return
        if stat.S_ISREG(mode):
            yield name
        elif stat.S_ISDIR(mode):
            if name:
                yield f"{name}/"
            for each in sorted(path.iterdir()):
                yield from self.below(f"{name}/{each.name}" if name else each.name)

    def data(self, name: str) -> bytes:
        """The first bytes of a file, one more than may cross; nothing of a folder."""
        if name.endswith("/"):
            return b""
        with self.path(name).open("rb") as file:
            return file.read(MOST + 1)

    def contents(self, names: Iterable[str]) -> Contents:
        """Raises NotPlainError where it is too much for a message."""
        found, left = dict[str, str](), MOST
        for name in names:
            data = self.data(name)
            left -= len(data) + len(name)
            if left < 0:
                raise NotPlainError(f"files of more than {MOST} bytes cannot cross")
            found[name] = base64.b64encode(data).decode()
        return found

    def write(self, name: str, content: str | None) -> None:
        """Have a file here as the other side has it. Raises ValueError and OSError."""
        path = self.path(name.rstrip("/"))
        # Nor another name of a file: `x/../expected` would be new, and lead to what is not.
        if self.name(name) != name.rstrip("/") or os.path.realpath(path) != str(path):
            raise ValueError(f"{name!r} is no file of the folder")
        if content is None:
            path.rmdir() if name.endswith("/") else path.unlink()
        elif name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(content))

    def outward(self, message: Message) -> Message:
        """A message with the paths that the other side has."""
        return {key: _moved(value, self._here, FOLDER) for key, value in message.items()}

    def inward(self, message: Message) -> Message:
        """A message of the other side, with the paths here."""
        return {
            key: value if key == "files" else _moved(value, FOLDER, self._here)
            for key, value in message.items()
        }


class OfTests(Files):
    """Those of tests."""

    def __init__(self, here: str) -> None:
        super().__init__(here)
        self._crossed = dict[str, bytes]()
        """Contents by name, as they last crossed; the program may change them while they are so."""

    def outgoing(self, message: Message) -> Message:
        names = {name for text in _texts(message) if (name := self.name(text))}
        listed = dict.fromkeys(each for name in sorted(names) for each in self.below(name))
        contents = self.contents({**self._above(names), **listed})
        self._crossed |= {name: self.data(name) for name in listed}
        return {**self.outward(message), "files": contents}

    def _above(self, names: Iterable[str]) -> dict[str, None]:
        """The folders that what is named lies in, be it still to be made."""
        parents = {f"{each}/": None for name in names for each in reversed(PurePath(name).parents)}
        return {each: None for each in parents if self.path(each).is_dir() and each != "./"}

    def incoming(self, message: Message) -> Message:
        files: Contents = message.get("files", {})
        # What is in a folder is removed before it.
        for name in sorted(files, key=lambda each: (files[each] is not None, each), reverse=True):
            if self._is_programs(name):
                self.write(name, files[name])
                if files[name] is None:
                    self._crossed.pop(name, None)
                else:
                    self._crossed[name] = self.data(name)
        return self.inward(message)

    def _is_programs(self, name: str) -> bool:
        """Whether the program may change a file: there is none, or the tests have not written it
        since it crossed, such as one with what they expect."""
        if not os.path.lexists(self.path(name.rstrip("/"))):
            return True
        return name in self._crossed and self._crossed[name] == self.data(name)


class OfProgram(Files):
    """Those of a program."""

    def __init__(self, here: str) -> None:
        super().__init__(here)
        self._before = dict[str, bytes]()
        """Contents that the tests know of."""

    def know(self) -> None:
        self._before = {name: self.data(name) for name in self.below("")}

    def outgoing(self, message: Message) -> Message:
        now = {name: self.data(name) for name in self.below("")}
        changed = [name for name, data in now.items() if data != self._before.get(name)]
        gone = dict.fromkeys(name for name in self._before if name not in now)
        self._before = now
        return {**self.outward(message), "files": {**self.contents(changed), **gone}}

    def incoming(self, message: Message) -> Message:
        for name, content in sorted(message["files"].items()):
            self.write(name, content)
            self._before[name] = self.data(name)
        return self.inward(message)


_SIDES: Mapping[str, type[Files]] = {"tests": OfTests, "calls": OfProgram}
_own = list[Files]()
"""Of this process, if files cross."""


def begin(mode: str, here: str, initial: Mapping[str, str]) -> None:
    """Let files cross between the folder of this process and the other side's.

    initial: contents in base64 of what is in it already, and does not cross as it is.
    """
    if mode in _SIDES:
        own = _SIDES[mode](here)
        for name, content in initial.items():
            own.write(name, content)
        own.know()
        _own.append(own)


def outgoing(message: Message) -> Message:
    """A message as this process sends it to the other side."""
    return _own[0].outgoing(message) if _own else message


def incoming(message: Message) -> Message:
    """A message of the other side as this process reads it."""
    return _own[0].incoming(message) if _own else message


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, list | Mapping):
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        for key, each in pairs:
            if key not in _NO_PATHS:
                yield from _texts(each)


def _moved(values: Any, old: str, new: str) -> Any:
    """Encoded values, with paths of one folder as those of another one."""
    if old == new:
        return values
    if isinstance(values, str):
        is_path = values == old or values.startswith(f"{old}/")
        return new + values[len(old) :] if is_path else values
    if isinstance(values, list):
        return [_moved(each, old, new) for each in values]
    if isinstance(values, dict):
        return {key: _moved(each, old, new) for key, each in values.items()}
    return values
