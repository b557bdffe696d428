"""Completions before and after training as HTML: pairs them, chooses some, and counts changes."""

from collections.abc import Sequence
from pathlib import Path

from groupwise_report.completions import (
    MOST_OF_A_REASON,
    Pair,
    Sample,
    change,
    completion,
    heading,
    is_failed,
    output,
    prompt,
    scores,
    shown,
    verdict,
)
from groupwise_report.gallery import gallery
from groupwise_report.images import Images
from groupwise_report.wording import brief

MOST_PROMPTS = 24


def compare(
    run: Path,
    before: Sequence[Sample],
    after: Sequence[Sample],
    *,
    names: tuple[str, str] = ("Before", "After"),
) -> str:
    """The content of the section: the counts, then images in a grid, then a card for each text.

    names: of the two sides.
    """
    pairs = paired(before, after)
    has_images = any(map(_has_image, pairs))
    # Prompts that an image model refused have no image, and are shown among the images, as are
    # those whose completion failed.
    pictures = [pair for pair in pairs if has_images and (_has_image(pair) or _is_missing(pair))]
    texts = [pair for pair in pairs if pair not in pictures]
    images = Images(run)
    cards = "".join(_card(pair, images, names) for pair in chosen(texts))
    grid = gallery(chosen(pictures, len(pictures)), images, names)
    return tally(pairs) + failures(pairs) + grid + cards


def _has_image(pair: Pair) -> bool:
    return any(sample and sample.get("image") for sample in pair)


def _is_missing(pair: Pair) -> bool:
    return any(sample and (sample.get("refused") or is_failed(sample)) for sample in pair)


def paired(before: Sequence[Sample], after: Sequence[Sample]) -> list[Pair]:
    """Pairs of samples with the same draw, policy, index and decoding; None for a missing side."""
    sides = [{_key(sample): sample for sample in samples} for samples in (before, after)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    return [(sides[0].get(key), sides[1].get(key)) for key in keys]


def _key(sample: Sample) -> tuple[str, ...]:
    return (*_question(sample), str(sample.get("index")), str(bool(sample.get("greedy"))))


def _question(sample: Sample) -> tuple[str, str]:
    """The prompt, and in a pool the policy."""
    return str(sample.get("draw", sample.get("prompt"))), str(sample.get("learner", ""))


def chosen(pairs: Sequence[Pair], most: int = MOST_PROMPTS) -> list[Pair]:
    """One pair for each prompt, and in a pool for each policy; those that changed first.

    The pair is the greedy one, else the first sampled: a choice by outcome would be biased.
    """
    by_prompt: dict[tuple[str, str], Pair] = {}
    for pair in sorted(pairs, key=_decoding):
        by_prompt.setdefault(_question(pair[0] or pair[1] or {}), pair)
    order = {id(pair): position for position, pair in enumerate(pairs)}
    return sorted(by_prompt.values(), key=lambda p: (_sameness(p), order[id(p)]))[:most]


def _decoding(pair: Pair) -> tuple[bool, str]:
    sample = pair[0] or pair[1] or {}
    return (not sample.get("greedy"), str(sample.get("index")).zfill(9))


def _sameness(pair: Pair) -> int:
    before, after = pair
    if before is None or after is None:
        return 2
    if (change(pair) or "").startswith("became"):
        return 0
    return 1 if output(before) != output(after) else 3


def tally(pairs: Sequence[Pair]) -> str:
    """How many completions became or stayed right or wrong, over all evaluated completions."""
    counts = {"became right": 0, "became wrong": 0, "stayed right": 0, "stayed wrong": 0}
    for changed in filter(None, map(change, pairs)):
        counts[changed] += 1
    if not any(counts.values()):
        return ""
    colours = {"became right": ' class="good"', "became wrong": ' class="bad"'}
    parts = [f"<span{colours.get(k, '')}><b>{n:,}</b> {k}</span>" for k, n in counts.items()]
    total = f"<span>Of all {sum(counts.values()):,} evaluated completions:</span>"
    return f'<div class="tally">{total}{"".join(parts)}</div>'


def failures(pairs: Sequence[Pair]) -> str:
    """How many completions failed, of both evaluations, and why the first did."""
    reasons = [
        sample["failed"] for pair in pairs for sample in pair if sample and is_failed(sample)
    ]
    if not reasons:
        return ""
    why = brief(reasons[0], MOST_OF_A_REASON)
    return f'<p class="intro"><b>{len(reasons):,}</b> evaluated completions failed: {why}</p>'


def _card(pair: Pair, images: Images, names: tuple[str, str]) -> str:
    sample = pair[0] or pair[1] or {}
    greedy = (
        "greedy decoding" if sample.get("greedy") else f"sample {brief(sample.get('index', ''))}"
    )
    sides = zip(names, pair, strict=True)
    whose = f"<span>{brief(sample['learner'])}</span>" if sample.get("learner") else ""
    inside = "".join(_side(side, s, images) for side, s in sides if s)
    return (
        f'<article class="sample"><header><span>Prompt {brief(sample.get("draw", ""))}</span>'
        f"{whose}<span>{greedy}</span>{verdict(pair)}</header>{prompt(sample, images)}"
        f'<div class="sides">{inside}</div></article>'
    )


def _side(side: str, sample: Sample, images: Images) -> str:
    output = "" if sample.get("refused") else completion(sample, images)
    above = heading(side, sample) + shown(sample, images)
    return f"<section>{above}{output}{scores(sample)}</section>"
