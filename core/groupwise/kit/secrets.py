"""Secrets in options: masked in every file and message, passed in full to the plugin alone.

`${NAME}` refers to an environment variable and is replaced only when a plugin gets its options. A
secret written into the options themselves is wrapped in `Held`, which prints as a mask, so it
cannot be read back from what a run writes.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_origin

from pydantic import Secret, SecretBytes, SecretStr

Keys = tuple[str | int, ...]
"""The path to an option: keys, and indices of list items."""


class Held(Secret[Any]):
    """A secret written into the options, wrapped until a plugin gets them."""


HIDDEN = Held("hidden")
MASK = str(HIDDEN)
"""Written in place of a secret."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
TYPES = (Secret, SecretBytes, SecretStr)
SHORTEST = 6
"""Secrets of at least this many characters are also masked in messages; shorter ones would match
common words."""

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "credential", "token")
_ADDRESS = re.compile(r"\w[\w+.-]*://\S*")
_USER = re.compile(r"\w[\w+.-]*://[^\s/?#:]*:[^\s/?#]+@\S*\Z")
_IN_QUERY = re.compile(r"[?&#]([^=&#]+)=")
_BEFORE_KEY = re.compile("access|account|api|auth|encryption|private|secret|service|signing")
_BEFORE_TOKEN = re.compile(
    "answer|audio|begin|blank|bos|by|cls|decoder|each|end|eos|extra|final|first|forced|ignore|image"
    "|last|mask|next|one|pad|per|prefix|sep|separator|sos|special|start|stop|suffix|text|think|tool"
    "|unk|video|word"
)
"""Words before `token` that make it a piece of text and no secret: `eos_token`."""

_known: dict[str, str] = {}
"""The secrets of this process, each with the string that replaces it in messages."""


def is_secret(key: object) -> bool:
    """Whether an option of this name holds a secret: `api_key`, `hf_token`, but not `eos_token`."""
    before, last = (["", "", *map(str.lower, _PARTS.findall(str(key)))])[-2:]
    if last in ("key", "keys"):
        return bool(_BEFORE_KEY.fullmatch(before))
    if last in ("auth", "authorization", "bearer", "cookie", "cookies", "pwd"):
        return True
    word = last if last == "tokens" else last.removesuffix("s")
    return word.endswith(_ENDINGS) and not (word == "token" and _BEFORE_TOKEN.fullmatch(before))


def concealed(value: Any, key: object = "") -> Any:
    """An option with all its secrets wrapped in `Held`; the same object if it has none."""
    return everything(value) if is_secret(key) else _rebuilt(value, concealed, _with_secrets)


def everything(value: Any) -> Any:
    """An option that is secret as a whole: every string and number in it wrapped in `Held`."""
    return _rebuilt(value, lambda inner, _: everything(inner), _held)


def _with_secrets(value: Any) -> Any:
    """A leaf that may contain a secret: an address with a password, or a Python object with a
    secret attribute."""
    if isinstance(value, str):
        names = [] if not _ADDRESS.fullmatch(value) else _IN_QUERY.findall(value)
        return _held(value) if _USER.match(value) or any(map(is_secret, names)) else value
    # The object's repr may show the attribute.
    attributes = value.keywords if isinstance(value, partial) else getattr(value, "__dict__", ())
    is_plain = callable(value) and not isinstance(value, partial)
    return _held(value) if not is_plain and any(map(is_secret, attributes)) else value


def _held(value: Any) -> Any:
    is_plain = value is None or isinstance(value, (bool, *TYPES)) or _name(value)
    if is_plain or (isinstance(value, str) and not value):
        return value
    _remember(value, MASK)
    return Held(value)


def problems(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """The path of each secret that cannot be resolved, with an error message."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from problems(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from problems(inner, (*path, number))
    elif (name := _name(value)) and name not in os.environ:
        yield path, f"there is no environment variable {name}, which ${{{name}}} refers to"
    elif _plain(value) == MASK:
        dotted = ".".join(map(str, path))
        problem = (
            f"the run's folder holds only the mask {MASK}, not the secret: pass it again by "
            f"{dotted}=... on the command line; ${{NAME}}, which names an environment variable, is "
            f"written as it is and needs no such override"
        )
        yield path, problem


def revealed(value: Any, _: object = "") -> Any:
    """An option as a plugin gets it: secrets unwrapped, environment variables replaced."""
    return _rebuilt(value, revealed, _revealed_leaf)


def _revealed_leaf(value: Any) -> Any:
    name = _name(value)
    if name:
        _remember(os.environ[name], value)
        return os.environ[name]
    if isinstance(value, TYPES):
        _remember(value.get_secret_value(), MASK)
    plain = _plain(value)
    # $${NAME} is the text ${NAME}, not a reference.
    return plain[1:] if isinstance(plain, str) and plain[:1] == "$" and _name(plain[1:]) else plain


def masked(value: Any) -> Any:
    """An option as it is written to files, secrets replaced by masks."""
    return _masked(concealed(value))


def _masked(value: Any, _: object = "") -> Any:
    return _rebuilt(value, _masked, lambda leaf: MASK if isinstance(leaf, TYPES) else leaf)


def same(key: str, *texts: object) -> bool:
    """Whether the written values of a dotted key may differ only because one is a masked secret."""
    return MASK in texts or any(map(is_secret, key.split(".")))


def redacted(text: str) -> str:
    """A message without the secrets that this process knows."""
    for secret, word in sorted(_known.items(), key=lambda item: -len(item[0])):
        for written in (secret, repr(secret)[1:-1]):
            text = text.replace(written, word)
    return text


def _remember(secret: object, word: str) -> None:
    text = secret.decode(errors="replace") if isinstance(secret, bytes) else str(secret)
    if not isinstance(secret, str | bytes | int | float):
        return
    # A key from a file ends with a newline, which falls away where the key is used.
    _known.update({form: word for form in (text, text.strip()) if len(form) >= SHORTEST})


def _name(value: Any) -> str:
    """The environment variable that a string refers to; "" if it is not a reference."""
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else ""


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, Held) else value


def _rebuilt(value: Any, inner: Callable[[Any, object], Any], leaf: Callable[[Any], Any]) -> Any:
    """The same structure with items mapped by `inner` and leaves by `leaf`.

    Where nothing changes it is the same object: Python code may share a list with its reward.
    """
    if isinstance(value, Mapping):
        rebuilt = {key: inner(item, key) for key, item in value.items()}
        return value if all(rebuilt[key] is item for key, item in value.items()) else rebuilt
    if isinstance(value, list | tuple):
        items = [inner(item, "") for item in value]
        unchanged = all(new is old for new, old in zip(items, value, strict=True))
        return value if unchanged else items if isinstance(value, list) else tuple(items)
    return leaf(value)


def are_types(hints: Sequence[Any]) -> bool:
    """Whether one of an option's type hints is a pydantic secret type."""
    types = [get_origin(hint) or hint for hint in hints]
    return any(isinstance(kind, type) and issubclass(kind, TYPES) for kind in types)


def in_types(value: Any, hints: Sequence[Any], below: Callable[[Any, Any], Iterator[Any]]) -> Any:
    """An option with every part wrapped in `Held` whose type hint is a secret type.

    below: yields the type hints under one key, or one index, of a type hint.
    """
    if are_types(hints):
        return everything(value)

    def inner(item: Any, key: object) -> Any:
        return in_types(item, [each for hint in hints for each in below(hint, key)], below)

    return _rebuilt(value, inner, lambda leaf: leaf)
