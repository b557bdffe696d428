"""sample_run: a rejection-sampled set: completions of a run's model, scored by its rewards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.evaluation import Sample
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.prompt_source import Row
from groupwise.run.reopening import Reopened, reopened
from groupwise_commands.selection import Selection

UNJUDGED = (
    "no reward of this run says that it tells right from wrong, so no completion is right: set "
    "evaluation.accuracy to one whose 1 means right (with evaluation.threshold, the least value "
    "that does); --keep best takes the highest reward"
)


@dataclass(frozen=True, kw_only=True)
class PromptSamples:
    """A prompt with all its completions, and the kept ones as rows of the set."""

    samples: Sequence[Sample]
    kept: Sequence[Mapping[str, Any]]


def sample_run(
    run: Path,
    selection: Selection,
    overrides: Sequence[str] = (),
    *,
    objects: Mapping[KeyPath, Any] | None = None,
) -> list[Mapping[str, Any]]:
    """The rows of a rejection-sampled set from a run's last checkpoint; images as PIL images,
    videos as `Video`s.

    objects: the Python objects that were passed to the run, by the key path of their section. For
    sets that are too large for memory use `sampled_prompts`.
    """
    with reopened(run, overrides, objects) as opened:
        return [row for prompt in sampled_prompts(opened, selection) for row in prompt.kept]


def sampled_prompts(run: Reopened, selection: Selection) -> Iterator[PromptSamples]:
    """One prompt after the other with its completions, the same on all processes.

    Samples of training and evaluation are not drawn again. Raises UserError for `keep: right` if no
    reward tells right from wrong, and if the split has no prompts.
    """
    if selection.keep == "right" and run.accuracy is None:
        raise UserError(UNJUDGED)
    for row, samples in run.samples(
        selection.split, selection.per_prompt, prompts=selection.prompts, seed=selection.seed
    ):
        yield _answered(samples, row, selection, judged=run.accuracy is not None)


def _answered(
    samples: Sequence[Sample], row: Row, selection: Selection, *, judged: bool
) -> PromptSamples:
    right = [sample["right"] for sample in samples if sample["right"] is not None]
    share = sum(right) / len(right) if right else None
    kept = selection.kept(samples, judged=judged)
    return PromptSamples(samples=samples, kept=[_row(sample, row, share) for sample in kept])


def _row(sample: Sample, row: Row, share: float | None) -> Mapping[str, Any]:
    """A row of the set: the prompt's row, updated by the columns of the sample."""
    own = {
        "reward": sample["total"],
        "right": sample["right"],
        "share_right": share,
        "rewards": sample["rewards"],
        **({"watched": sample["watched"]} if "watched" in sample else {}),
        "length": sample["length"],
        "truncated": sample["truncated"],
        **({"ended": sample["ended"]} if "ended" in sample else {}),
        **({"learner": sample["learner"]} if "learner" in sample else {}),
        **({"failed": sample["failed"]} if "failed" in sample else {}),
        "draw": sample["draw"],
        "index": sample["index"],
    }
    return {"prompt": None, "completion": None, **row, **own} | {
        name: sample[name] for name in ("prompt", "completion")
    }
