"""One evaluated completion as HTML: its text, whether it is right, and its rewards.

Completions are untrusted: every character of them is escaped.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from groupwise import attachments
from groupwise_report.conversation import shortened, turns, words
from groupwise_report.images import Images, thumbnails
from groupwise_report.wording import MINUS, brief, display, number

Sample = Mapping[str, object]
Pair = tuple[Sample | None, Sample | None]

MOST_REWARDS = 40
MOST_OF_A_REASON = 300  # characters
_COUNTED = {  # column of an environment: its name for one, and for several
    "turns": ("turn", "turns"),
    "calls": ("call", "calls"),
    "call_errors": ("failed call", "failed calls"),
    "tool_tokens": ("token of tools", "tokens of tools"),
}


def change(pair: Pair) -> str | None:
    """How a completion changed, as "became right" or "stayed wrong"; None if it is not judged."""
    was, now = (sample.get("right") if sample else None for sample in pair)
    if not isinstance(was, bool) or not isinstance(now, bool):
        return None
    return f"{'stayed' if was == now else 'became'} {'right' if now else 'wrong'}"


def rise(pair: Pair) -> float | None:
    """By how much the reward of a completion rose; None if a side has none."""
    was, now = (number(sample.get("total")) if sample else None for sample in pair)
    return None if was is None or now is None else now - was


def verdict(pair: Pair) -> str:
    """Coloured marks if a completion became right or wrong and if its reward changed, "unchanged"
    if it is the same."""
    marks, changed, rose = [], change(pair) or "", rise(pair)
    if changed.startswith("became"):
        colour = "good" if changed.endswith("right") else "bad"
        marks.append(f'<span class="{colour}">{changed}</span>')
    if rose:
        words = f"reward {'rose' if rose > 0 else 'fell'} by {display(abs(rose))}"
        marks.append(f'<span class="{"good" if rose > 0 else "bad"}">{words}</span>')
    before, after = pair
    if not marks and before and after and output(before) == output(after):
        marks.append("<span>unchanged</span>")
    return "".join(marks)


def output(sample: Sample) -> tuple[object, object]:
    """The completion: a text, or the name of an image file."""
    return (sample.get("completion"), sample.get("image"))


def prompt(sample: Sample, images: Images) -> str:
    """The prompt with its pictures: those of columns in their places in messages, or above."""
    own = sample.get("images")
    columns = iter(own if isinstance(own, list) else ())
    whole = _filled(sample.get("prompt", ""), columns)
    above = thumbnails([*map(images.small, columns)])
    return above + words(whole, show=images.small)


def _filled(messages: object, columns: Iterator[object]) -> object:
    """Messages with the next picture in each `{"type": "image"}` that has none."""

    def part(own: object) -> object:
        if isinstance(own, Mapping) and own.get("type") == "image" and own.get("image") is None:
            return {**own, "image": next(columns, None)}
        return own

    def message(own: object) -> object:
        parts = own.get("content") if isinstance(own, Mapping) else None
        if not isinstance(own, Mapping) or not isinstance(parts, list):
            return own
        return {**own, "content": [*map(part, parts)]}

    return [*map(message, messages)] if isinstance(messages, list) else messages


def completion(sample: Sample, images: Images) -> str:
    """The text or the conversation of a completion, with the rewards of its turns."""
    return words(sample.get("completion") or "", _of_turns(sample), show=images.small)


def _of_turns(sample: Sample) -> Sequence[object]:
    """The rewards of its turns, [] if it has none."""
    rewards = sample.get("turn_rewards")
    return rewards if isinstance(rewards, list) else []


def heading(side: str, sample: Sample) -> str:
    """The name of the side, whether the completion is right, and whether it was cut, refused or
    failed."""
    marks = [side]
    if isinstance(sample.get("right"), bool):
        right = '<span class="good">✓ right</span>', '<span class="bad">✗ wrong</span>'
        marks.append(right[0] if sample["right"] else right[1])
    if sample.get("truncated"):
        marks.append("cut off by the limit")
    elif sample.get("ended", "stop") not in ("stop", "failed", "refused"):
        marks.append(f"ended: {brief(sample['ended'])}")
    if sample.get("refused"):
        marks.append(f"refused by {brief(sample['refused'])}")
    if is_failed(sample):
        marks.append(
            f'<span class="bad">failed: {brief(sample["failed"], MOST_OF_A_REASON)}</span>'
        )
    return f"<h4>{' · '.join(marks)}</h4>"


def is_failed(sample: Sample) -> bool:
    """Whether it has no reward because the completion, or a reward on it, failed."""
    return bool(sample.get("failed"))


def shown(sample: Sample, images: Images) -> str:
    """What the policy and the environment show of how it came about, by name: texts, pictures."""
    return "".join(
        f'<div class="words" dir="auto"><small>{brief(name)}</small>\n{_fact(value, images)}</div>'
        for name, value in _named(sample, "shown")
    )


def _fact(value: object, images: Images) -> str:
    if (picture := attachments.of_part(value)) is not None:
        return thumbnails([images.small(picture)])
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def scores(sample: Sample, nothing: str = "does not apply") -> str:
    """The rewards of a sample by name, then those that are only watched, rewards of its turns where
    they do not stand beside these, and what was counted of an episode with tools.

    nothing: shown in place of a missing value.
    """
    parts = [
        f'<span title="{brief(reward)}"><{tag}>{brief(reward)}</{tag}> '
        f"<b>{nothing if value is None else _number(value)}</b></span>"
        for key, tag in (("rewards", "span"), ("watched", "em"))
        for reward, value in _named(sample, key)[:MOST_REWARDS]
    ]
    rewards = _of_turns(sample)
    if rewards and len(rewards) != turns(sample.get("completion")):
        each = " ".join(nothing if r is None else _number(r) for r in rewards[:MOST_REWARDS])
        parts.append(f"<span>its turns <b>{each}</b></span>")
    parts += [f"<span>{counted}</span>" for counted in _counts(sample)]
    return f'<div class="scores">{"".join(parts)}</div>' if parts else ""


def _counts(sample: Sample) -> list[str]:
    """What an environment with tools counts of an episode, in words."""
    columns = dict(_named(sample, "extra"))
    counts = [(number(columns.get(name)), *words) for name, words in _COUNTED.items()]
    marks = [
        f"{display(count)} {one if count == 1 else many}"
        for count, one, many in counts
        if count or (count == 0 and one == "call")
    ]
    seconds = number(columns.get("tool_seconds"))
    return marks + ([f"{display(seconds)} s in tools"] if seconds else [])


def _named(sample: Sample, key: str) -> list[tuple[object, object]]:
    values = sample.get(key)
    return list(values.items()) if isinstance(values, Mapping) else []


def _number(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.3g}".replace("-", MINUS) if is_number else brief(value)
