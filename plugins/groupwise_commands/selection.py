"""Selection: which of a prompt's completions a rejection-sampled set keeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from groupwise.evaluation import Sample
from groupwise.kit.errors import UserError

Keep = Literal["best", "right", "all"]
Split = Literal["train", "held-out"]
LARGEST = 100_000
"""The most completions of a prompt, since they are scored together and in memory at once."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How much to sample, and what to keep. Raises UserError for invalid values.

    per_prompt: completions per prompt; keep: the best one, every right one, or all of them;
    at_most: most completions to keep per prompt, the best first; if unset 1 for "best", else no
    limit; prompts: number of prompts, if unset all of the split; seed: for other completions.
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
            raise UserError("--at-most keeps the best of a prompt; leave it out with --keep all")
        if self.at_most is not None and self.at_most > self.per_prompt:
            raise UserError(
                f"--at-most: expected at most --per-prompt {self.per_prompt}, found {self.at_most}"
            )

    def kept(self, samples: Sequence[Sample], *, judged: bool) -> list[Sample]:
        """The completions to keep of one prompt.

        keep "all": all of them, also unscored ones, in the order of sampling. Else those that are
        right (for "best" without a reward that judges: that have a reward) and not truncated,
        duplicates once; sorted by reward, then shortest first, then in the order of sampling.
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
