"""Completions before and after training, side by side, as HTML.

A completion is whatever a model wrote: every character of it is escaped, and an image is only
read from inside the run's folder and only if it is a PNG.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from groupwise.wording import MINUS, text

Sample = Mapping[str, object]
Pair = tuple[Sample | None, Sample | None]

MOST_PROMPTS = 24
MOST_IMAGES = 48
MOST_CHARACTERS = 8000
_TINY = 128  # pixels; narrower images are enlarged
_PNG = b"\x89PNG\r\n\x1a\n"


def words(value: object) -> str:
    """A prompt or a completion, a string or a list of messages, as blocks of text."""
    if isinstance(value, list | tuple):
        return "".join(_message(message) for message in value)
    return f'<div class="words" dir="auto">{_shortened(value)}</div>'


def _message(message: object) -> str:
    if not isinstance(message, Mapping):
        return words(str(message))
    role = text(message.get("role", "message"))
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in content)
    return f'<div class="words" dir="auto"><small>{role}</small>\n{_shortened(content or "")}</div>'


def _part(part: object) -> str:
    if isinstance(part, Mapping):
        return str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]"
    return str(part)


def _shortened(value: object) -> str:
    """Escaped; the middle of a very long text is left out, since answers stand at the end."""
    whole = str(value)
    if len(whole) <= MOST_CHARACTERS:
        return text(whole)
    half = MOST_CHARACTERS // 2
    left_out = f'<span class="cut">[{len(whole) - 2 * half:,} characters left out]</span>'
    return f"{text(whole[:half])}\n{left_out}\n{text(whole[-half:])}"


def paired(before: Sequence[Sample], after: Sequence[Sample]) -> list[Pair]:
    """The samples of one draw, index and way of decoding, from either side, in their order."""
    sides = [{_key(sample): sample for sample in samples} for samples in (before, after)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    return [(sides[0].get(key), sides[1].get(key)) for key in keys]


def _key(sample: Sample) -> tuple[str, ...]:
    prompt = sample.get("draw", sample.get("prompt"))
    return (str(prompt), str(sample.get("index")), str(bool(sample.get("greedy"))))


def chosen(pairs: Sequence[Pair], most: int = MOST_PROMPTS) -> list[Pair]:
    """One pair for each prompt, those that changed first.

    The pair is the greedy one, or the first sampled: picking by outcome would flatter the run.
    """
    by_prompt: dict[str, Pair] = {}
    for pair in sorted(pairs, key=_decoding):
        sample = pair[0] or pair[1] or {}
        by_prompt.setdefault(str(sample.get("draw", sample.get("prompt"))), pair)
    order = {id(pair): position for position, pair in enumerate(pairs)}
    return sorted(by_prompt.values(), key=lambda p: (_sameness(p), order[id(p)]))[:most]


def _decoding(pair: Pair) -> tuple[bool, str]:
    sample = pair[0] or pair[1] or {}
    return (not sample.get("greedy"), str(sample.get("index")).zfill(9))


def _sameness(pair: Pair) -> int:
    before, after = pair
    if before is None or after is None:
        return 2
    if before.get("right") != after.get("right"):
        return 0
    return 1 if _output(before) != _output(after) else 3


def _output(sample: Sample) -> tuple[object, object]:
    return (sample.get("completion"), sample.get("image"))


def tally(pairs: Sequence[Pair]) -> str:
    """How many completions became right, became wrong or stayed: all of them, not those shown."""
    counts = {"became right": 0, "became wrong": 0, "stayed right": 0, "stayed wrong": 0}
    for before, after in pairs:
        if before and after and "right" in before and "right" in after:
            was, now = bool(before["right"]), bool(after["right"])
            counts[f"{'stayed' if was == now else 'became'} {'right' if now else 'wrong'}"] += 1
    if not any(counts.values()):
        return ""
    colours = {"became right": ' class="good"', "became wrong": ' class="bad"'}
    parts = [f"<span{colours.get(k, '')}><b>{n:,}</b> {k}</span>" for k, n in counts.items()]
    total = f"<span>Of all {sum(counts.values()):,} evaluated completions:</span>"
    return f'<div class="tally">{total}{"".join(parts)}</div>'


def compare(run: Path, before: Sequence[Sample], after: Sequence[Sample]) -> str:
    """The section's inside: the tally, then a card for each chosen prompt."""
    pairs = paired(before, after)
    images = _Images(run)
    cards = (_card(pair, images) for pair in chosen(pairs))
    return tally(pairs) + "".join(cards)


def _card(pair: Pair, images: "_Images") -> str:
    sample = pair[0] or pair[1] or {}
    greedy = (
        "greedy decoding" if sample.get("greedy") else f"sample {text(sample.get('index', ''))}"
    )
    sides = zip(("Before", "After"), pair, strict=True)
    return (
        f'<article class="sample"><header><span>Prompt {text(sample.get("draw", ""))}</span>'
        f"<span>{greedy}</span>{_verdict(pair)}</header>{words(sample.get('prompt', ''))}"
        f'<div class="sides">{"".join(_side(n, s, images) for n, s in sides if s)}</div></article>'
    )


def _verdict(pair: Pair) -> str:
    before, after = pair
    if not before or not after:
        return ""
    was, now = before.get("right"), after.get("right")
    if was == now:
        return "<span>unchanged</span>" if _output(before) == _output(after) else ""
    right, wrong = ('good">became right', 'bad">became wrong')
    return f'<span class="{right if now else wrong}</span>'


def _side(name: str, sample: Sample, images: "_Images") -> str:
    marks = [name]
    if isinstance(sample.get("right"), bool):
        marks.append(_right(bool(sample["right"])))
    if sample.get("truncated"):
        marks.append("cut off by the limit")
    image = images.embed(sample["image"]) if sample.get("image") else ""
    output = words(sample.get("completion") or "") if sample.get("completion") or not image else ""
    return f"<section><h4>{' · '.join(marks)}</h4>{image}{output}{_scores(sample)}</section>"


def _right(right: bool) -> str:
    return '<span class="good">✓ right</span>' if right else '<span class="bad">✗ wrong</span>'


def _scores(sample: Sample) -> str:
    rewards = sample.get("rewards")
    if not isinstance(rewards, Mapping) or not rewards:
        return ""
    parts = (f"<span>{text(name)} <b>{_score(value)}</b></span>" for name, value in rewards.items())
    return f'<div class="scores">{"".join(parts)}</div>'


def _score(value: object) -> str:
    if value is None:
        return "does not apply"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.3g}".replace("-", MINUS) if is_number else text(value)


class _Images:
    """Embeds a run's images, up to a number of them."""

    def __init__(self, run: Path) -> None:
        self.run = run.resolve()
        self.left = MOST_IMAGES

    def embed(self, name: object) -> str:
        """An `<img>` that holds the file; a line that says why where it cannot."""
        if self.left == 0:
            return f"<p>{text(name)} (only the first {MOST_IMAGES} images are shown)</p>"
        content = self._read(str(name))
        if content is None:
            return f"<p>{text(name)} (no such file in the run's folder)</p>"
        if not content.startswith(_PNG):
            return f"<p>{text(name)} (not a PNG)</p>"
        self.left -= 1
        data = base64.b64encode(content).decode()
        width = int.from_bytes(content[16:20], "big")  # where a PNG's header has it
        tiny = ' class="tiny"' if width <= _TINY else ""
        return f'<img{tiny} alt="{text(name)}" src="data:image/png;base64,{data}">'

    def _read(self, name: str) -> bytes | None:
        try:
            path = (self.run / name).resolve()
            return path.read_bytes() if path.is_relative_to(self.run) else None
        except (OSError, ValueError):  # no file, a folder, or a name that no file can have
            return None
