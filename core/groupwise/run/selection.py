"""Selection: which of a prompt's completions a rejection-sampled set keeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from groupwise.errors import UserError
from groupwise.evaluation import Sample

Keep = Literal["best", "right", "all"]
Split = Literal["train", "held-out"]
LARGEST = 100_000
"""Completions of a prompt: they are scored together, and lie in memory at once."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is drawn, and what of it is kept. Raises UserError for what makes no sense.

    per_prompt: completions of a prompt; keep: the best one, every right one, or all of them;
    at_most: of a prompt, the best first, if unset one where the best is kept, and else any number;
    prompts: how many, if unset all of the split; seed: another one draws other completions.
    """

    per_prompt: int
    keep: Keep = "best"
    at_most: int | None = None
    prompts: int | None = None
    split: Split = "train"
    seed: int = 0

    def __post_init__(self) -> None:
        choices = {"keep": (self.keep, Keep), "split": (self.split, Split)}
        for name, (value, of) in choices.items():
            if value not in get_args(of):
                raise UserError(f"--{name}: expected {_either(get_args(of))}, found {value!r}")
        if not 1 <= self.per_prompt <= LARGEST:
            raise UserError(
                f"--per-prompt: expected 1 to {LARGEST:,} completions, found {self.per_prompt}"
            )
        counts = {"--prompts": (self.prompts, 1), "--at-most": (self.at_most, 1)}
        for name, (count, least) in {**counts, "--seed": (self.seed, 0)}.items():
            if count is not None and count < least:
                raise UserError(f"{name}: expected {least} or more, found {count}")
        if self.keep == "all" and self.at_most is not None:
            raise UserError("--at-most keeps the best of a prompt: not with --keep all")
        if self.at_most is not None and self.at_most > self.per_prompt:
            raise UserError(f"--at-most {self.at_most} of --per-prompt {self.per_prompt}")

    def kept(self, samples: Sequence[Sample], *, judged: bool) -> list[Sample]:
        """Of one prompt's completions, in the order in which they were drawn, those to keep.

        "all" is all of them, unscored ones too. Else those that a reward calls right (where none
        judges and the best are wanted: those that have a reward), that ended by themselves, and
        equal ones once: the highest reward first, of equal ones the shortest, then the one drawn
        first.
        """
        if self.keep == "all":
            return [*samples]
        good = [
            sample
            for sample in samples
            if sample["total"] is not None
            and not sample["truncated"]
            and (sample["right"] or (not judged and self.keep == "best"))
        ]
        good.sort(key=lambda sample: (-sample["total"], sample["length"], sample["index"]))
        different = {repr(sample["completion"]): sample for sample in reversed(good)}
        distinct = [sample for sample in good if different[repr(sample["completion"])] is sample]
        return distinct[: self._most]

    @property
    def _most(self) -> int | None:
        return 1 if self.keep == "best" and self.at_most is None else self.at_most


def _either(values: Sequence[str]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"
