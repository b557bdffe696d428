"""Frames: messages of JSON on a descriptor, each after its length."""

import json
import os
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


class EndedError(EOFError):
    """The other side has closed the descriptor."""


def packed(message: Any) -> bytes:
    """A message as it is written."""
    data = json.dumps(message).encode()
    return _LENGTH.pack(len(data)) + data


def write(descriptor: int, message: Any) -> None:
    """Write one message, whole."""
    left = memoryview(packed(message))
    while left:
        left = left[os.write(descriptor, left) :]


def read(descriptor: int) -> Any:
    """The next message, of a side that is trusted. Raises EndedError at the end."""
    (length,) = _LENGTH.unpack(_exactly(descriptor, _LENGTH.size))
    return json.loads(_exactly(descriptor, length))


def _exactly(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = os.read(descriptor, min(count - len(data), 1 << 20))
        if not part:
            raise EndedError
        data += part
    return bytes(data)


class Lines:
    """Lines of JSON of a side that writes no length before them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> list[bytes]:
        """The lines that are whole with these bytes."""
        self._data += data
        *whole, rest = self._data.split(b"\n")
        self._data = bytearray(rest)
        return [bytes(each) for each in whole]


class Reader:
    """Messages of a side that is not trusted, as their bytes arrive."""

    def __init__(self, most: int) -> None:
        """most: bytes of one message; a longer one raises ValueError."""
        self._most, self._data = most, bytearray()

    def add(self, data: bytes) -> list[bytes]:
        """The messages that are whole with these bytes, as they were written."""
        self._data += data
        messages = []
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > self._most:
                raise ValueError(f"a message of {length} bytes, at most {self._most} are read")
            if len(self._data) < _LENGTH.size + length:
                break
            messages.append(bytes(self._data[_LENGTH.size : _LENGTH.size + length]))
            del self._data[: _LENGTH.size + length]
        return messages
