"""Reader: rows and messages with pictures, to prompts with a block for each and the pictures.

The columns are those of TRL's GRPOTrainer: `image`, or `images`, beside `prompt`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

from groupwise import attachments
from groupwise.kit.copies import equal
from groupwise.kit.errors import UserError, first_line
from groupwise_llm.vision.album import Album
from groupwise_llm.vision.picture import ROOM, Picture
from groupwise_messages.images import AddressError, ImageError, measured, opened
from groupwise_messages.pictures import COLUMNS, PARTS

BLOCK: Mapping[str, Any] = {"type": "image"}
"""A picture's place in a message, as chat templates read it."""


Prepare = Callable[[Any, str], Picture]
"""From a picture as users give it, and the place where it stands."""


@dataclass(frozen=True)
class Read:
    """prompt: a text, or messages with a `BLOCK` for each picture; pictures: in their order."""

    prompt: Any
    pictures: Sequence[Picture]


class Shown(dict[str, Any]):
    """A part of a message with a picture that is prepared already, while an album keeps it."""

    def __init__(self, part: Mapping[str, Any], picture: Picture) -> None:
        super().__init__(part)
        self._value, self._picture = _own(self), ref(picture)

    def __copy__(self) -> "Shown":
        own = type(self).__new__(type(self))
        own.update(self)
        own.__dict__.update(self.__dict__)
        return own

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, ({**self},)  # elsewhere it is the part alone

    @property
    def picture(self) -> Picture | None:
        """None if it must be prepared again."""
        return self._picture() if equal(_own(self), self._value) else None


class Reader:
    """Reads the pictures of rows and replies.

    album: which prepares them; fetch: whether pictures may be http(s) URLs.
    """

    def __init__(self, album: Album, *, fetch: bool) -> None:
        self.album, self.family, self.fetch = album, album.family, fetch

    def row(self, row: Mapping[str, Any], *, blank: bool = False) -> Read:
        """The prompt of a row, with the pictures of its messages and of its columns.

        Pictures of columns take the places of blocks without one, in order; if the messages have
        no block at all, they stand before the text of the first message of the user. A prompt that
        is a text has the family's placeholder where each stands. Raises UserError, which names the
        row and the column.

        blank: read no pixels, and return blank pictures of the same sizes, which have as many
            tokens.
        """
        place, columns = place_of(row), self._columns(row)
        prepare = self._blank if blank else self._picture
        if isinstance(row["prompt"], str):
            return self._text(row["prompt"], columns, place, prepare)
        messages = [_plain(message, place) for message in row["prompt"]]
        if columns and not any(map(_blocks, messages)):
            messages = _with_blocks(messages, len(columns), place)
        empty = sum(_own(block) is None for message in messages for block in _blocks(message))
        if empty != len(columns):
            raise UserError(f"{place}: {_mismatch(len(columns), empty)}")
        return self._read(messages, iter(columns), place, prepare)

    def replies(self, messages: Sequence[Mapping[str, Any]], *, blank: bool = False) -> Read:
        """Messages of tools or users, whose blocks have their pictures, in memory or as `data:`
        URLs: an environment's answers must not open files or addresses. Raises UserError.

        blank: as in `row`.
        """
        roles = ", ".join(dict.fromkeys(repr(message.get("role")) for message in messages))
        place = f"a message of the role {roles}"
        plain = [_plain(message, place) for message in messages]
        if any(_own(block) is None for message in plain for block in _blocks(message)):
            raise UserError(f"{place}: a part {{type: image}} has no picture")
        prepare = self._blank if blank else self._picture
        return self._read(plain, iter(()), place, partial(_self_contained, prepare))

    def _columns(self, row: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The pictures of the columns, each with where it stands."""
        single, several = (row.get(name) for name in COLUMNS)
        if single is not None and several is not None:
            raise UserError(
                f"{place_of(row)}: it has both columns, `image` (one picture) and `images` (a "
                f"list); leave one of them out"
            )
        if several is not None and not isinstance(several, list | tuple):
            raise UserError(
                f"{place_of(row)}, column 'images': expected a list of pictures, found "
                f"{type(several).__name__}; a column with one picture is `image`"
            )
        if single is not None:
            return [("column 'image'", single)]
        own = [*enumerate(several or ())]
        return [(f"column 'images', picture {number}", value) for number, value in own]

    def _text(
        self, text: str, columns: list[tuple[str, Any]], place: str, prepare: Prepare
    ) -> Read:
        mark = self.family.placeholder
        if (count := text.count(mark)) != len(columns):
            raise UserError(
                f"{place}: {_mismatch(len(columns), count)}; a prompt that is a text has {mark} "
                f"where each picture stands, and messages (`chat: true`) need none"
            )
        pictures = [prepare(value, f"{place}, {name}") for name, value in columns]
        return Read(text, pictures)

    def _read(
        self,
        messages: Sequence[Mapping[str, Any]],
        columns: Iterator[tuple[str, Any]],
        place: str,
        prepare: Prepare,
    ) -> Read:
        """Messages with a picture for each block: its own, or the next one of the columns."""
        pictures: list[Picture] = []

        def bare(part: Mapping[str, Any]) -> Mapping[str, Any]:
            if not is_block(part):
                return part
            picture = part.picture if isinstance(part, Shown) else None
            if picture is None:
                own = _own(part)
                name, value = next(columns) if own is None else ("in a message", own)
                picture = prepare(value, f"{place}, {name}")
            pictures.append(picture)
            return BLOCK

        read = []
        for message in messages:
            content = message["content"]
            parts = [*map(bare, content)] if isinstance(content, list) else content
            read.append({**message, "content": parts})
        return Read(read, pictures)

    def _picture(self, value: Any, place: str) -> Picture:
        """What the family makes of a picture. Raises UserError."""
        try:
            image = opened(value, fetch=self.fetch)
        except ImageError as error:
            raise _refused(place, error) from error
        return self._prepared(partial(self.album.picture, image), image.size, place)

    def _blank(self, value: Any, place: str) -> Picture:
        """What the family makes of a blank picture of the same size. Raises UserError."""
        try:
            size = measured(value, fetch=self.fetch)
        except ImageError as error:
            raise _refused(place, error) from error
        return self._prepared(partial(self.album.blank, size), size, place)

    def _prepared(
        self, prepare: Callable[[], Picture], extent: tuple[int, int], place: str
    ) -> Picture:
        size = f"a picture of {extent[0]} x {extent[1]} pixels"
        try:
            picture = prepare()
        except UserError:
            raise
        except Exception as error:  # of a processor: a size that it refuses, say
            raise UserError(
                f"{place}: the model's processor refuses {size}: {first_line(error)}"
            ) from error
        if len(picture) > ROOM:
            raise UserError(
                f"{place}: {size} becomes {len(picture):,} tokens, and the most are {ROOM:,}; set "
                f"policy.max_pixels"
            )
        return picture


def place_of(row: Mapping[str, Any]) -> str:
    """Where a row is: by its number where that is known (`PlacedRow`), else by its prompt."""
    known: str | None = getattr(row, "place", None)
    if known is not None:
        return known
    return f"prompts, the row that begins {str(attachments.readable(row['prompt']))[:80]!r}"


def _self_contained(prepare: Prepare, value: Any, place: str) -> Picture:
    """What is prepared of a picture that is in its message. Raises UserError for others."""
    if not attachments.is_self_contained(value):
        raise UserError(
            f"{place}: a picture must be opened by what shows it (PIL.Image.open), or be bytes "
            f"or a data: URL; no file or web address of a message is read during a run"
        )
    return prepare(value, place)


def _plain(message: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The message without the fields of its parts that are None: in a table each part has all.

    Raises UserError for a part that is neither text nor a picture.
    """
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return {**message, "content": content}
    parts = list[Mapping[str, Any]]()
    for part in content:
        if isinstance(part, Shown):
            parts.append(part)
            continue
        own = {k: v for k, v in part.items() if v is not None} if isinstance(part, Mapping) else {}
        if not (is_block(own) or isinstance(own.get("text"), str)):
            raise UserError(
                f"{place}: the parts of a message are {{type: text, text: ...}} or {{type: image, "
                f"image: ...}}, found one of the type {own.get('type', type(part).__name__)!r}"
            )
        parts.append(own)
    return {**message, "content": parts}


def _with_blocks(
    messages: Sequence[Mapping[str, Any]], count: int, place: str
) -> list[Mapping[str, Any]]:
    """The messages with so many blocks before the text of the first one of the user."""
    number = next((n for n, own in enumerate(messages) if own["role"] == "user"), None)
    if number is None:
        raise UserError(
            f"{place}: its pictures would stand before the text of the first message of the user, "
            f"and there is none; write {{type: image}} where each stands"
        )
    message = messages[number]
    content = message["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    whole = {**message, "content": [*[BLOCK] * count, *parts]}
    return [*messages[:number], whole, *messages[number + 1 :]]


def is_block(part: Mapping[str, Any]) -> bool:
    """Whether a part of a message is a picture."""
    return part.get("type") in PARTS


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message["content"]
    return [*filter(is_block, content)] if isinstance(content, list) else []


def _own(block: Mapping[str, Any]) -> Any:
    """The picture of a block, None where it takes one of the columns."""
    return block.get(block["type"])


def _mismatch(pictures: int, places: int) -> str:
    have = "no picture" if pictures == 0 else f"{pictures} picture{'s' if pictures > 1 else ''}"
    room = "no place" if places == 0 else f"{places} place{'s' if places > 1 else ''}"
    return f"its columns 'image' and 'images' have {have}, and its prompt has {room} for one"


def _refused(place: str, error: ImageError) -> UserError:
    hint = ", or set policy.fetch_pictures: true" if isinstance(error, AddressError) else ""
    return UserError(f"{place}: {error}{hint}")
