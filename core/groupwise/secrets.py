"""Secrets in options: hidden where they are written, handed over where a plugin is built.

`${NAME}` is a reference to a variable of the environment. It stays as it is until a plugin gets its
options. A secret that stands in the options themselves is `Held`, which is written as a mask;
nothing can read it back from there.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_origin

from pydantic import Secret, SecretBytes, SecretStr

Keys = tuple[str | int, ...]
"""Where an option stands: keys and numbers of items."""


class Held(Secret[Any]):
    """A secret that stood in the options, held until they are handed over."""


HIDDEN = Held("hidden")
MASK = str(HIDDEN)
"""What is written in place of a secret."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
TYPES = (Secret, SecretBytes, SecretStr)
SHORTEST = 6
"""Characters of a secret that is also looked for in messages; shorter ones are common words."""

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "credential", "token")
_ADDRESS = re.compile(r"\w[\w+.-]*://\S*")
_USER = re.compile(r"\w[\w+.-]*://[^\s/?#:]*:[^\s/?#]+@\S*\Z")
_IN_QUERY = re.compile(r"[?&#]([^=&#]+)=")
_OF_A_KEY = re.compile("access|account|api|auth|encryption|private|secret|service|signing")
_OF_TEXT = re.compile(
    "answer|audio|begin|blank|bos|by|cls|decoder|each|end|eos|extra|final|first|forced|ignore|image"
    "|last|mask|next|one|pad|per|prefix|sep|separator|sos|special|start|stop|suffix|text|think|tool"
    "|unk|video|word"
)
"""What precedes `token` where that is a piece of text."""

_known: dict[str, str] = {}
"""The secrets of this process, and what is said in their place."""


def is_secret(key: object) -> bool:
    """Whether an option of this name holds a secret: `api_key`, `hf_token`, but not `eos_token`."""
    before, last = (["", "", *map(str.lower, _PARTS.findall(str(key)))])[-2:]
    if last in ("key", "keys"):
        return bool(_OF_A_KEY.fullmatch(before))
    if last in ("auth", "authorization", "bearer", "cookie", "cookies", "pwd"):
        return True
    one = last if last == "tokens" else last.removesuffix("s")
    return one.endswith(_ENDINGS) and not (one == "token" and _OF_TEXT.fullmatch(before))


def concealed(value: Any, key: object = "") -> Any:
    """An option with all its secrets `Held`; itself where it has none."""
    return everything(value) if is_secret(key) else _rebuilt(value, concealed, _with_secrets)


def everything(value: Any) -> Any:
    """An option that is a secret whole: every text and number in it is `Held`."""
    return _rebuilt(value, lambda inner, _: everything(inner), _held)


def _with_secrets(value: Any) -> Any:
    """An address with a password in it, or an object of Python's with a secret of its own."""
    if isinstance(value, str):
        names = [] if not _ADDRESS.fullmatch(value) else _IN_QUERY.findall(value)
        return _held(value) if _USER.match(value) or any(map(is_secret, names)) else value
    # Its words may show it.
    own = value.keywords if isinstance(value, partial) else getattr(value, "__dict__", ())
    is_open = callable(value) and not isinstance(value, partial)
    return _held(value) if not is_open and any(map(is_secret, own)) else value


def _held(value: Any) -> Any:
    is_open = value is None or isinstance(value, (bool, *TYPES)) or _name(value)
    if is_open or (isinstance(value, str) and not value):
        return value
    _remember(value, MASK)
    return Held(value)


def problems(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Path and sentence for each secret that cannot be handed over."""
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
            f"the secret itself was not written, only {MASK}: give it again by {dotted}=... on the "
            f"command line; ${{NAME}} in its place is written, and names an environment variable"
        )
        yield path, problem


def revealed(value: Any, _: object = "") -> Any:
    """An option as a plugin gets it: secrets as they are, and the variables' values."""
    return _rebuilt(value, revealed, _given)


def _given(value: Any) -> Any:
    name = _name(value)
    if name:
        _remember(os.environ[name], value)
        return os.environ[name]
    if isinstance(value, TYPES):
        _remember(value.get_secret_value(), MASK)
    plain = _plain(value)
    # $${NAME} is text, and no reference.
    return plain[1:] if isinstance(plain, str) and plain[:1] == "$" and _name(plain[1:]) else plain


def masked(value: Any) -> Any:
    """An option as it is written, with masks for secrets."""
    return _masked(concealed(value))


def _masked(value: Any, _: object = "") -> Any:
    return _rebuilt(value, _masked, lambda one: MASK if isinstance(one, TYPES) else one)


def same(key: str, *texts: object) -> bool:
    """Whether values of a dotted key, as they are written, may differ by a secret alone."""
    return MASK in texts or any(map(is_secret, key.split(".")))


def redacted(text: str) -> str:
    """A message without the secrets that this process knows."""
    for secret, word in sorted(_known.items(), key=lambda item: -len(item[0])):
        for written in (secret, repr(secret)[1:-1]):
            text = text.replace(written, word)
    return text


def _remember(secret: object, word: str) -> None:
    text = secret.decode(errors="replace") if isinstance(secret, bytes) else str(secret)
    if len(text) >= SHORTEST and isinstance(secret, str | bytes | int | float):
        _known[text] = word


def _name(value: Any) -> str:
    """The variable that a text refers to, or nothing."""
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else ""


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, Held) else value


def _rebuilt(value: Any, inner: Callable[[Any, object], Any], leaf: Callable[[Any], Any]) -> Any:
    """The same with every value changed by `inner` or `leaf`; itself where nothing changes.

    Python code may share a list with a reward that it gives it to.
    """
    if isinstance(value, Mapping):
        made = {key: inner(one, key) for key, one in value.items()}
        return value if all(made[key] is one for key, one in value.items()) else made
    if isinstance(value, list | tuple):
        items = [inner(one, "") for one in value]
        unchanged = all(new is old for new, old in zip(items, value, strict=True))
        return value if unchanged else items if isinstance(value, list) else tuple(items)
    return leaf(value)


def are_types(hints: Sequence[Any]) -> bool:
    """Whether one of an option's types says that it is a secret."""
    types = [get_origin(hint) or hint for hint in hints]
    return any(isinstance(one, type) and issubclass(one, TYPES) for one in types)


def in_types(value: Any, hints: Sequence[Any], below: Callable[[Any, Any], Iterator[Any]]) -> Any:
    """An option with all of it `Held` that its types call secret.

    below: the types under one key, or one number, of a type.
    """
    if are_types(hints):
        return everything(value)

    def inner(one: Any, key: object) -> Any:
        return in_types(one, [each for hint in hints for each in below(hint, key)], below)

    return _rebuilt(value, inner, lambda one: one)
