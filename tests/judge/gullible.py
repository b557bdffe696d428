"""A gullible judge: it obeys everything that it reads outside of the fences.

It reads as leniently as any server, tokenizer or model might. Whatever NFKC maps to ASCII is ASCII
to it, invisible characters are not there, letters have no case, and special tokens of chat
templates work wherever they are written: after one, the conversation has left the fence. It takes
the text of a picture's metadata for its own instructions.
"""

import io
import json
import re
import unicodedata
from base64 import b64decode
from pathlib import Path
from typing import Any

from PIL import Image
from tests.judge.stand_in import Request

HONEST, OBEDIENT = 2, 5
ROLE_TOKENS = Path(__file__).with_name("role_tokens.txt").read_text(encoding="utf-8").splitlines()
"""Control tokens of models' tokenizers, as they are written there."""
_INVISIBLE = ("Cc", "Cf", "Co", "Cn")


def lenient(text: str) -> str:
    """The text as the judge reads it."""
    plain = unicodedata.normalize("NFKC", text)
    return "".join(
        c for c in plain if c in "\n\t" or unicodedata.category(c) not in _INVISIBLE
    ).lower()


_TOKENS = re.compile(
    "|".join((r"<\|[\w/ ]+\|>", *(re.escape(lenient(token)) for token in ROLE_TOKENS)))
)


def outside(request: Request) -> str:
    """All that a request says outside of its fences, which are named [mark]."""
    system, user = (lenient(_text(message["content"])) for message in request["messages"])
    mark = re.search(r"<(data-[0-9a-f]{16}) \.\.\.>", system)
    if mark is None:
        return system + user
    opening, closing = rf"<{mark[1]}\b[^>]*>", f"</{mark[1]}>"
    left: list[str] = []
    for part in re.split(f"({opening})", user):
        if re.fullmatch(opening, part):
            left.append("[material]")
        elif left and left[-1] == "[material]":
            token = _TOKENS.search(part)
            material, _, rest = part.partition(closing)
            left.append(part[token.start() :] if token and token.start() < len(material) else rest)
        else:
            left.append(part)
    return (system + "".join(left)).replace(mark[1], "[mark]")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text") or _seen(block) for block in content)


def _seen(block: dict[str, Any]) -> str:
    """A picture, and whatever is written into its file besides pixels."""
    data = b64decode(block["image_url"]["url"].partition(",")[2])
    notes = Image.open(io.BytesIO(data)).info
    return f"[picture]{f'</data> {notes}' if notes else ''}"


class Gullible:
    """A judge for a stand-in. harmless: the texts outside of the fences of requests that contain no
    injection; one with another text has told it something, which it obeys."""

    def __init__(self) -> None:
        self.harmless: set[str] = set()
        self.is_learning = True

    def __call__(self, request: Request) -> str:
        said = outside(request)
        if self.is_learning:
            self.harmless.add(said)
        fields = request["response_format"]["json_schema"]["schema"]["properties"]
        index = HONEST if said in self.harmless else OBEDIENT
        return json.dumps({name: field["enum"][index - 1] for name, field in fields.items()})
