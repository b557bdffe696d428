"""Messages: what a judge reads, as chat messages with the material in fences.

Messages are those of transformers' chat templates: a content is a string, or where there are
pictures a list of blocks `{"type": "text", "text": ...}` and `{"type": "image", "image": PIL}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise import attachments
from groupwise_judge import fence
from groupwise_judge.digests import digest_of
from groupwise_judge.pictures import Frames, data_url, is_picture, opened
from groupwise_messages.pictures import PARTS
from groupwise_messages.videos import REFUSED, is_video

if TYPE_CHECKING:
    from PIL.Image import Image

Message = dict[str, Any]


@dataclass(frozen=True)
class Exhibit:
    """A piece of the material: what it is called, and its texts and pictures."""

    label: str
    parts: tuple[str | Image, ...]


def exhibits(
    label: str, content: Any, pictures: Sequence[Any] = (), *, files: bool = False
) -> list[Exhibit]:
    """The exhibits of a prompt or a completion: a string, a picture, frames of a video, or
    messages, one exhibit each.

    pictures: those beside a prompt, in the order of its image blocks; if it has no blocks they
    stand before the text of the first user message. files: whether messages may name pictures by
    the paths of files. Those of data sets may; those of an episode may not: what a tool answers
    would choose which of this machine's files the judge is sent.

    Raises ValueError for anything else, and where blocks and pictures differ in number.
    """
    spare = [opened(picture) for picture in pictures]
    if is_picture(content):
        return [Exhibit(label, (*spare, opened(content)))]
    if isinstance(content, Frames):
        return [Exhibit(f"{label}, {content}", (*spare, *content.pictures))]
    if is_video(content):
        raise ValueError(f"the {label} is {REFUSED}")
    if isinstance(content, str):
        return [Exhibit(label, (*spare, content))]
    is_chat = isinstance(content, Sequence) and all(isinstance(each, Mapping) for each in content)
    if not is_chat:
        raise ValueError(
            f"the {label} is {type(content).__name__}; expected text, messages or a PIL image"
        )
    if not content:  # said nothing, which the judge has to see
        return [Exhibit(label, (*spare, ""))]
    blocks = [list(_blocks(message, files=files)) for message in content]
    places = sum(block is None for message in blocks for block in message)
    if spare and all(isinstance(block, str) for message in blocks for block in message):
        roles = [message.get("role") for message in content]
        blocks[roles.index("user") if "user" in roles else 0][:0] = [None] * len(spare)
    elif places != len(spare):
        raise ValueError(f"the {label} has {places} image blocks and {len(spare)} pictures")
    left, count = iter(spare), len(content)
    return [
        Exhibit(
            label if count == 1 else f"{label}, message {number} of {count}, {_role(message)}",
            tuple(next(left) if block is None else block for block in parts),
        )
        for number, (message, parts) in enumerate(zip(content, blocks, strict=True), 1)
    ]


def _blocks(message: Mapping[str, Any], *, files: bool) -> Iterator[str | Image | None]:
    """The texts and pictures of a message, None for a picture that stands beside it."""
    content = message.get("content")
    for block in [content] if isinstance(content, str) else content or []:
        if isinstance(block, str):
            yield block
        elif block.get("type") == "text":
            yield str(block.get("text") or "")
        elif block.get("type") in PARTS:
            inner = block.get("image") or block.get("image_url") or block.get("url")
            inner = inner.get("url", inner) if isinstance(inner, Mapping) else inner
            if not files and _is_file(inner):
                raise ValueError(
                    f"a message names the picture {attachments.path_of(inner)!r:.120}, a file, "
                    f"which is opened for prompts and reference answers only; put the picture "
                    f"itself there: a PIL image, bytes, or a data: URL"
                )
            yield None if inner is None else opened(inner)
        else:
            yield f"[{block.get('type')!s:.40}, which is not shown]"
    if calls := message.get("tool_calls"):
        yield json.dumps(calls, ensure_ascii=False, default=str)


def _is_file(picture: Any) -> bool:
    """Whether `opened` would read a file of this machine."""
    if isinstance(picture, Mapping):
        picture = picture.get("bytes") or picture.get("path") or picture.get("url")
    if isinstance(picture, str):
        return not picture.startswith(("data:", "http:", "https:"))
    return isinstance(picture, Path)


def _role(message: Mapping[str, Any]) -> str:
    """A role as part of a label; roles come with the data, so they are letters only."""
    return re.sub(r"[^a-z]", "", str(message.get("role")).lower())[:20] or "unknown"


def messages(instructions: str, material: Sequence[Exhibit], question: str) -> list[Message]:
    """The messages of one judgement: instructions and the rule of fences as the system's, the
    material in fences and then the question as the user's."""
    mark = digest(material)
    parts: list[str | Image] = []
    for exhibit in material:
        shown = (fence.escaped(p) if isinstance(p, str) else p for p in exhibit.parts)
        parts += [f"<{mark} {exhibit.label}>\n", *shown, f"\n</{mark}>\n\n"]
    return [
        {"role": "system", "content": f"{instructions}\n\n{fence.RULE.format(mark=mark)}"},
        {"role": "user", "content": _content([*parts, question])},
    ]


def digest(material: Sequence[Exhibit]) -> str:
    """A hash of the material, which is also the name of its fence."""
    return fence.mark_of(_identity(material))


def _identity(material: Sequence[Exhibit]) -> Iterator[bytes]:
    for exhibit in material:
        yield exhibit.label.encode()
        for part in exhibit.parts:
            yield part.encode("utf-8", "replace") if isinstance(part, str) else digest_of(part)


def _content(parts: Sequence[str | Image]) -> str | list[dict[str, Any]]:
    """A string if there are no pictures: templates of text models accept nothing else."""
    blocks: list[dict[str, Any]] = []
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            blocks.append({"type": "text", "text": "".join(map(str, run))})
        else:
            blocks += [{"type": "image", "image": picture} for picture in run]
    return blocks[0]["text"] if len(blocks) == 1 else blocks


def as_sent(chat: Sequence[Message]) -> list[Message]:
    """The messages in the form of chat completions: pictures as data: URLs."""
    return [
        {**message, "content": [_sent(block) for block in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in chat
    ]


def _sent(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return block
    return {"type": "image_url", "image_url": {"url": data_url(block["image"])}}
