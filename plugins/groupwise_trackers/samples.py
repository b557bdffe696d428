"""The tables that a tracker shows: of an evaluation one completion for each of some prompts; of a
training step those that are kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupwise import attachments
from groupwise.evaluation import Sample
from groupwise_messages.texts import in_words
from groupwise_messages.videos import is_video

LONGEST = 10_000
"""Characters of a text; the middle of a longer one is left out, since answers are at the end."""


@dataclass(frozen=True)
class SampleTable:
    """Completions as a table.

    columns: prompt, completion, reward, right, each reward by its name; with several policies
    `policy`; of training steps also why they were chosen, and the advantage. rows: one for each
    sample; the cell of an image or a video is empty. images, videos: those completions, by row
    number, beside the pictures of their prompts. names: of the rows, the same at every evaluation.
    prefix: of the names it is logged under.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    images: Mapping[int, Any]
    videos: Mapping[int, Any]
    names: Sequence[str]
    prefix: str = ""

    @property
    def has_texts(self) -> bool:
        """Whether any completion is a text that is not empty."""
        place = self.columns.index("completion")
        return any(row[place] for row in self.rows)

    def with_cells(self, cells: Mapping[int, Any]) -> list[list[Any]]:
        """The rows with these completions, by row number."""
        place = self.columns.index("completion")
        rows = [list(row) for row in self.rows]
        for number, cell in cells.items():
            rows[number][place] = cell
        return rows


def shown(samples: Sequence[Sample], most: int) -> SampleTable:
    """One sample for each of the first `most` prompts, and in a pool for each policy.

    It is the greedy one, else the first: a choice by reward would be biased.
    """
    by_prompt: dict[tuple[Any, Any], Sample] = {}
    for sample in sorted(samples, key=lambda s: (not s["greedy"], s["index"])):
        by_prompt.setdefault((sample["draw"], sample.get("learner", "")), sample)
    draws = [*dict.fromkeys(sample["draw"] for sample in samples)][:most]
    chosen = [s for draw in draws for (other, _), s in by_prompt.items() if other == draw]
    return _table(chosen, [_name(sample) for sample in chosen])


def of_training(samples: Sequence[Sample]) -> SampleTable:
    """All samples of a step, with what chose them and their advantages."""
    names = [f"{' '.join(sample['chosen'])} {_name(sample)}" for sample in samples]
    table = _table(samples, names)
    return replace(
        table,
        columns=["chosen", *table.columns, "advantage"],
        rows=[
            [", ".join(sample["chosen"]), *row, sample["advantage"]]
            for sample, row in zip(samples, table.rows, strict=True)
        ],
        prefix="training_",
    )


def _table(chosen: Sequence[Sample], names: Sequence[str]) -> SampleTable:
    several = any("learner" in sample for sample in chosen)
    rewards = [*dict.fromkeys(name for sample in chosen for name in sample["rewards"])]
    completions = {n: s["completion"] for n, s in enumerate(chosen) if is_media(s["completion"])}
    return SampleTable(
        columns=["prompt", "completion", "reward", "right", *rewards]
        + (["policy"] if several else []),
        rows=[_row(sample, rewards, several=several) for sample in chosen],
        images={
            n: _beside_sources(chosen[n], own)
            for n, own in completions.items()
            if not is_video(own)
        },
        videos={n: own for n, own in completions.items() if is_video(own)},
        names=names,
    )


def _beside_sources(sample: Sample, completion: Any) -> Any:
    """A picture beside those of its prompt, from which it was edited; alone where there are none,
    or they cannot be opened."""
    if not sample.get("images"):
        return completion
    try:
        from groupwise_messages.images import opened, side_by_side

        return side_by_side([*map(opened, sample["images"]), opened(completion)])
    except (ImportError, ValueError):
        return completion


def is_media(completion: object) -> bool:
    """Whether it is an image, such as PIL's, or a video, with a method `save`."""
    return callable(getattr(completion, "save", None))


def _row(sample: Sample, rewards: Sequence[str], *, several: bool) -> list[Any]:
    completion = sample["completion"]
    return [
        _prompt(sample),
        "" if is_media(completion) else words(completion),
        sample["total"],
        sample["right"],
        *(sample["rewards"].get(name) for name in rewards),
        *([sample.get("learner", "")] if several else []),
    ]


def _prompt(sample: Sample) -> str:
    """The prompt as text, with the pictures of columns in words before it."""
    above = [*map(attachments.named, sample.get("images", ()))]
    return "\n".join([*above, words(sample["prompt"])])


def _name(sample: Sample) -> str:
    learner = f"/{sample['learner']}" if sample.get("learner") else ""
    return f"prompt {sample['draw']}{learner}"


def words(value: Any) -> str:
    """A prompt or a completion, a text or a list of messages, as one text of bounded length."""
    if isinstance(value, list | tuple):
        value = "\n".join(map(in_words, value))
    text = "" if value is None else str(value)
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers; trackers cannot show others."""
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
