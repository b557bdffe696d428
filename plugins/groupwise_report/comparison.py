"""Completions before and after training as HTML: pairs them, chooses some, and counts changes."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean

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
    rise,
    scores,
    shown,
    verdict,
)
from groupwise_report.gallery import gallery
from groupwise_report.images import Images
from groupwise_report.wording import brief, display, number

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
    """One pair for each prompt, and in a pool for each policy: those whose reward changed most, the
    one that rose most first.

    Of a prompt it is the greedy pair or the first sampled one, whichever changed more: to choose
    among all its samples would show luck.
    """
    by_prompt: dict[tuple[str, str], Pair] = {}
    firsts: set[tuple[str, str, bool]] = set()
    for pair in sorted(pairs, key=_decoding):
        sample = pair[0] or pair[1] or {}
        question, is_greedy = _question(sample), bool(sample.get("greedy"))
        if (*question, is_greedy) in firsts:
            continue
        firsts.add((*question, is_greedy))
        other = by_prompt.setdefault(question, pair)
        if _sameness(pair) < _sameness(other):
            by_prompt[question] = pair
    order = {id(pair): position for position, pair in enumerate(pairs)}
    ranked = sorted(by_prompt.values(), key=lambda p: (_sameness(p), order[id(p)]))[:most]
    # Stable: those without a change keep their order, after all that have one.
    return sorted(ranked, key=lambda p: (_sameness(p)[0], -(rise(p) or 0.0)))


def _decoding(pair: Pair) -> tuple[bool, str]:
    sample = pair[0] or pair[1] or {}
    return (not sample.get("greedy"), str(sample.get("index")).zfill(9))


def _sameness(pair: Pair) -> tuple[int, float]:
    """Smaller, the more a pair changed: its reward, then its completion; then those with one side,
    and those that are equal."""
    before, after = pair
    if before is None or after is None:
        return 2, 0.0
    rose = rise(pair)
    if rose or (change(pair) or "").startswith("became"):
        return 0, -abs(rose or 0.0)
    return (1 if output(before) != output(after) else 3), 0.0


def tally(pairs: Sequence[Pair]) -> str:
    """What rose and what fell, over all evaluated completions, and how many became or stayed right
    or wrong; over those that were sampled, as the metrics, where there are greedy ones, too."""
    sampled = [pair for pair in pairs if not any(each and each.get("greedy") for each in pair)]
    kind = "sampled" if 0 < len(sampled) < len(pairs) else "evaluated"
    pairs = sampled or pairs
    both = [(before, after) for before, after in pairs if before and after]
    changes = (_changed(name, both) for name in _measures(both))
    means = "".join(words for _, words in sorted(filter(None, changes), key=itemgetter(0)))
    shown = [f"<span>Means before and after:</span>{means}"] if means else []
    counts = {"became right": 0, "became wrong": 0, "stayed right": 0, "stayed wrong": 0}
    for changed in filter(None, map(change, pairs)):
        counts[changed] += 1
    rises = [rose for rose in map(rise, pairs) if rose is not None]
    if any(counts.values()):
        shown.append(_counts(kind, counts, "became right", "became wrong"))
    elif any(rises):
        shown.append(
            _counts(
                kind,
                {
                    "rose": sum(rose > 0 for rose in rises),
                    "fell": sum(rose < 0 for rose in rises),
                    "kept their reward": sum(rose == 0 for rose in rises),
                },
                *("rose", "fell"),
            )
        )
    return "".join(f'<div class="tally">{line}</div>' for line in shown)


def _counts(kind: str, counts: Mapping[str, int], good: str, bad: str) -> str:
    colours = {good: ' class="good"', bad: ' class="bad"'}
    parts = [f"<span{colours.get(k, '')}><b>{n:,}</b> {k}</span>" for k, n in counts.items()]
    return f"<span>Of all {sum(counts.values()):,} {kind} completions:</span>{''.join(parts)}"


def _measures(pairs: Sequence[tuple[Sample, Sample]]) -> list[str]:
    """ "" for the whole reward, and the names of several rewards."""
    names = dict.fromkeys(name for _, after in pairs for name in _rewards(after))
    return ["", *(names if len(names) > 1 else ())]


def _rewards(sample: Sample) -> Mapping[str, object]:
    rewards = sample.get("rewards")
    return rewards if isinstance(rewards, Mapping) else {}


def _changed(
    name: str, pairs: Sequence[tuple[Sample, Sample]]
) -> tuple[tuple[bool, float], str] | None:
    """The place in the order and the words of a mean that changed; None if it did not."""

    def value(sample: Sample) -> float | None:
        return number(_rewards(sample).get(name) if name else sample.get("total"))

    values = [(value(before), value(after)) for before, after in pairs]
    known = [(was, now) for was, now in values if was is not None and now is not None]
    if not known:
        return None
    was, now = (fmean(side) for side in zip(*known, strict=True))
    if was == now:
        return None
    colour, what = "good" if now > was else "bad", brief(name) if name else "<b>reward</b>"
    words = f'<span class="{colour}">{what} {display(was)} → {display(now)}</span>'
    return (bool(name), was - now), words


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
