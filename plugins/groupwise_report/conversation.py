"""A conversation as HTML: turns with their rewards, pictures, calls of tools, folded answers and
thinking.

Messages are untrusted: every character of them is escaped, and any form of them is shown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from groupwise import attachments
from groupwise.tool_call import ToolCall
from groupwise_messages.thinking import TAGS
from groupwise_report.images import thumbnails
from groupwise_report.wording import brief, display, number, text

MOST_CHARACTERS = 8000
MOST_MESSAGES = 40
MOST_CALLS = 20  # of a message
MOST_OF_A_GIST = 120  # characters
SHORT = 120  # characters of an answer that is not folded
_KEYS_OF_THINKING = ("reasoning_content", "thinking")
Show = Callable[[object], str]
"""What is attached to a message, such as a picture, as HTML."""


def words(value: object, rewards: Sequence[object] = (), *, show: Show | None = None) -> str:
    """A prompt or a completion, a string or a list of messages, as blocks of text.

    rewards: of the turns, the assistant's messages in order; show: attachments are not shown
    without it.
    """
    if not isinstance(value, list | tuple):
        return f'<div class="words" dir="auto">{shortened(value)}</div>'
    shown = [_message(*block, show) for block in _with_rewards(value, rewards)]
    if (left_out := len(shown) - MOST_MESSAGES) > 0:  # of the middle: answers are at the end
        shown[MOST_MESSAGES // 2 : -MOST_MESSAGES // 2] = [_cut(left_out, "messages")]
    return "".join(shown)


def gist(value: object) -> str:
    """The words of a prompt or a completion on one line, of a long one the beginning and the end:
    of a conversation what the model said, or else the last message."""
    if isinstance(value, list | tuple):
        messages = [message for message in value if isinstance(message, Mapping)]
        replies = [m for m in messages if _role(m) == "assistant"] or messages[-1:]
        value = " ".join(_content(message.get("content"), shown=True) for message in replies)
    return brief("" if value is None else value, MOST_OF_A_GIST)


def turns(value: object) -> int:
    """How many messages of a completion are the assistant's."""
    messages = value if isinstance(value, list | tuple) else ()
    return sum(_role(message) == "assistant" for message in messages)


def _with_rewards(
    messages: Sequence[object], rewards: Sequence[object]
) -> Iterator[tuple[object, object]]:
    turn = count()
    known = rewards if len(rewards) == turns(messages) else ()
    for message in messages:
        place = next(turn) if _role(message) == "assistant" else -1
        yield message, known[place] if 0 <= place < len(known) else None


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else None


def _message(message: object, reward: object, show: Show | None) -> str:
    if not isinstance(message, Mapping):
        return words(str(message))
    content = message.get("content")
    whole = _content(content, shown=show is not None)
    pictures = thumbnails(_pictures(content, show)) if show is not None else ""
    if message.get("role") == "tool":
        return _answer(message, whole, pictures)
    role, value = brief(message.get("role", "message")), number(reward)
    role += "" if value is None else f" · reward <b>{display(value)}</b>"
    thinking, text = _parted(message, whole)
    parts = [_folded("thinking", thinking)] if thinking.strip() else []
    parts += [shortened(text)] if text.strip() or not parts else []
    calls = message.get("tool_calls")
    parts += _calls(calls) if isinstance(calls, list | tuple) else []
    inside = f"{pictures}{''.join(parts)}"
    return f'<div class="words" dir="auto"><small>{role}</small>\n{inside}</div>'


def _content(content: object, *, shown: bool) -> str:
    """The text of a message; shown: attachments before it need no mark, since they stand above."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    first = next(
        (n for n, part in enumerate(content) if attachments.of_part(part) is None), len(content)
    )
    return "\n".join(map(_part, content[first if shown else 0 :]))


def _part(part: object) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    own = part.get("text")
    return own if isinstance(own, str) else f"[{part.get('type', 'part')}]"


def _pictures(content: object, show: Show) -> list[str]:
    parts = content if isinstance(content, list) else ()
    return [show(own) for own in map(attachments.of_part, parts) if own is not None]


def _parted(message: Mapping[str, object], whole: str) -> tuple[str, str]:
    """Thinking that has ended, and the text after it."""
    own = next((message[key] for key in _KEYS_OF_THINKING if message.get(key)), None)
    if own is not None:
        return str(own), whole
    for opening, closing in TAGS.items():
        thinking, tag, text = whole.partition(closing)
        # Many templates begin the thinking themselves, so that the message has the end alone.
        if tag and (thinking.lstrip().startswith(opening) or opening not in whole):
            return thinking.lstrip().removeprefix(opening).strip(), text.lstrip()
    return "", whole


def _calls(calls: Sequence[object]) -> list[str]:
    """The calls of tools in a message, as name(arguments)."""
    shown = [f'<div class="call">{shortened(_call(call))}</div>' for call in calls[:MOST_CALLS]]
    left_out = len(calls) - MOST_CALLS
    return shown + ([_cut(left_out, "calls")] if left_out > 0 else [])


def _call(call: object) -> str:
    read = ToolCall.of(call)
    return str(read) if read.fault is None else str(call)


def _answer(message: Mapping[str, object], whole: str, pictures: str) -> str:
    """What a tool answered; folded, with its size, unless it is short."""
    name = f" {brief(message['name'])}" if message.get("name") else ""
    if len(whole) <= SHORT and "\n" not in whole.strip():
        inside = f"<small>tool{name}</small> {text(whole.strip())}"
    else:
        inside = _folded(f"tool{name}", whole)
    return f'<div class="words tool" dir="auto">{inside}{pictures}</div>'


def _folded(title: str, whole: str) -> str:
    """Text that opens at a click, with its size; title: HTML."""
    size = f"{len(whole):,} character{'' if len(whole) == 1 else 's'}"
    return f"<details><summary>{title} · {size}</summary>{shortened(whole)}</details>"


def shortened(value: object, most: int = MOST_CHARACTERS) -> str:
    """The escaped text; the middle of a very long one is left out, since answers are at the end."""
    whole = str(value)
    if len(whole) <= most:
        return text(whole)
    half = most // 2
    left_out = _cut(len(whole) - 2 * half, "characters")
    return f"{text(whole[:half])}\n{left_out}\n{text(whole[-half:])}"


def _cut(count: int, what: str) -> str:
    return f'<span class="cut">[{count:,} {what} left out]</span>'
