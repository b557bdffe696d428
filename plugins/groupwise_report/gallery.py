"""Images before and after training, in a grid with several prompts per row, as HTML."""

from collections.abc import Sequence

from groupwise_report.completions import (
    Pair,
    Sample,
    heading,
    prompt,
    scores,
    shown,
    verdict,
)
from groupwise_report.conversation import words
from groupwise_report.images import Images
from groupwise_report.wording import brief

MOST_PICTURED = 60  # prompts
MOST_OF_A_PROMPT = 1_000  # characters
EN_DASH = "\N{EN DASH}"


def gallery(pairs: Sequence[Pair], images: Images, names: tuple[str, str]) -> str:
    """A card for each pair, up to the largest number of prompts or images of a page.

    names: of the two sides.
    """
    cards: list[str] = []
    for pair in pairs:
        if images.full or len(cards) == MOST_PICTURED:
            left = f"{len(pairs) - len(cards):,} more are in the run's folder, under samples/."
            return f'<div class="gallery">{"".join(cards)}</div><p class="intro">{left}</p>'
        cards.append(_card(pair, images, names))
    return f'<div class="gallery">{"".join(cards)}</div>' if cards else ""


def _card(pair: Pair, images: Images, names: tuple[str, str]) -> str:
    sample = pair[0] or pair[1] or {}
    marks = f"<span>{brief(sample['learner'])}</span>" if sample.get("learner") else ""
    marks += "<span>greedy</span>" if sample.get("greedy") else ""
    named = zip(names, pair, strict=True)
    sides = "".join(_side(side, sample, images) for side, sample in named if sample)
    above, sources = _prompt(sample, images), _sources(sample, images)
    return (
        f'<article class="sample picture"><header><span>Prompt {brief(sample.get("draw", ""))}'
        f"</span>{marks}{verdict(pair)}</header>{above}"
        f'<div class="pair">{sources}{sides}</div></article>'
    )


def _prompt(sample: Sample, images: Images) -> str:
    own = sample.get("prompt", "")
    if not isinstance(own, str):
        return prompt(sample, images)
    short = brief(own, MOST_OF_A_PROMPT)
    return f'<p class="asked" dir="auto" title="{short}">{short}</p>'


def _sources(sample: Sample, images: Images) -> str:
    """The pictures that a prompt in words has, beside the results: what was edited."""
    own = sample.get("images")
    if not isinstance(own, list) or not isinstance(sample.get("prompt"), str):
        return ""
    return "".join(f"<section><h4>source</h4>{images.small(file)}</section>" for file in own)


def _side(side: str, sample: Sample, images: Images) -> str:
    image = images.embed(sample["image"]) if sample.get("image") else ""
    output = words(sample["completion"], show=images.small) if sample.get("completion") else ""
    above = heading(side, sample) + shown(sample, images)
    return f"<section>{above}{image}{output}{scores(sample, EN_DASH)}</section>"
