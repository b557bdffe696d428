"""sample_run: a rejection-sampled set: completions of a run's model, scored by its rewards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from groupwise import processes
from groupwise.config.objects import Objects
from groupwise.errors import UserError
from groupwise.evaluation import Sample
from groupwise.prompt_source import Row, check_row
from groupwise.prompts.draws import SCAN, Draw, Prompts
from groupwise.prompts.identity import identity
from groupwise.prompts.seeds import seed_for
from groupwise.run.parts import Parts
from groupwise.run.reopening import Reopened, reopened
from groupwise.run.selection import Selection, Split

BATCHES = 4
"""Batches that a process samples before results are returned. Async and isolated rewards score each
batch but the last while the next is sampled."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A prompt with all its completions, and the kept ones as rows of the set."""

    samples: Sequence[Sample]
    kept: Sequence[Mapping[str, Any]]


def sample_run(
    run: Path,
    selection: Selection,
    overrides: Sequence[str] = (),
    *,
    objects: Objects | None = None,
) -> list[Mapping[str, Any]]:
    """The rows of a rejection-sampled set from a run's last checkpoint; images as PIL images.

    objects: the Python objects that were passed to the run, by the key path of their section. For
    sets that are too large for memory use `answers`.
    """
    with reopened(run, overrides, objects) as opened:
        return [row for answered in answers(opened, selection) for row in answered.kept]


def answers(run: Reopened, selection: Selection) -> Iterator[Answered]:
    """One prompt after the other with its completions, the same on all processes.

    The seeds have a name space of their own, so samples of training and evaluation are not drawn
    again. Raises UserError for `keep: right` if no reward tells right from wrong, and if the split
    has no prompts.
    """
    evaluator, sampler, judge = run.evaluator, run.evaluator.sampler, run.evaluator.judge
    judged = not judge.measures
    if selection.keep == "right" and not judged:
        raise UserError(_unjudged(judge.name))
    sampler.follow({}, run.state.global_step)
    draws = islice(_draws(run.parts, selection), selection.prompts)
    size, space = selection.per_prompt, f"sample {selection.seed}"
    # Prompts of one batch on all processes together.
    batch = min(max(1, s.batch // size) * s.process[1] for s in sampler.samplings.values())
    is_empty = True
    while chunk := list(islice(draws, batch * BATCHES)):
        is_empty = False
        drawn = evaluator.samples(chunk, size, run.state, space=space, greedy=False)
        samples: list[Sample] = gather_object([*drawn])
        evaluator.failures = processes.first_of(evaluator.failures)
        judge.agree()
        # A value of this chunk may have shown that the reward only measures.
        if judged and judge.measures and selection.keep != "all":
            raise UserError(_unjudged(judge.name))
        samples.sort(
            key=lambda sample: (sample["draw"], sample.get("learner", ""), sample["index"])
        )
        rows = {draw.number: draw.row for draw in chunk}
        for number, of_prompt in groupby(samples, key=itemgetter("draw")):
            yield _answered([*of_prompt], rows[number], selection, judged=not judge.measures)
    if is_empty:
        raise UserError(_no_prompts(run.parts, selection.split))


def _answered(
    samples: Sequence[Sample], row: Row, selection: Selection, *, judged: bool
) -> Answered:
    right = [sample["right"] for sample in samples if sample["right"] is not None]
    share = sum(right) / len(right) if right else None
    kept = selection.kept(samples, judged=judged)
    return Answered(samples=samples, kept=[_row(sample, row, share) for sample in kept])


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


def _draws(parts: Parts, selection: Selection) -> Iterator[Draw]:
    """The prompts of the split, each once: held-out ones in the order of an evaluation, training
    ones in an order by the run's seed."""
    held = selection.split == "held-out"
    prompts = parts.evaluation_prompts if held else parts.prompts
    if selection.prompts is None and len(prompts.source) > SCAN:
        raise UserError(
            f"--prompts: set a number, since the run's source generates "
            f"{len(prompts.source):,} of them"
        )
    drawn: set[tuple[str, str]] = set()
    for row in prompts.rows() if held else _shuffled(prompts):
        name = (identity(row["prompt"]), prompts.question(row))
        if name in drawn or prompts.is_held_out(row) != held or prompts.skips(row):
            continue
        yield Draw(len(drawn), row)
        drawn.add(name)


def _shuffled(prompts: Prompts) -> Iterator[Row]:
    """All rows in an order by the run's seed, different from that of training."""
    count = len(prompts.source)
    generator = torch.Generator().manual_seed(seed_for(prompts.seed, "order of samples", 0, 0))
    order = torch.randperm(count, generator=generator) if prompts.shuffle else torch.arange(count)
    for index in map(int, order):
        row = prompts.source[index]
        check_row(row, index)
        yield row


def _unjudged(name: str) -> str:
    return (
        f"reward {name!r} measures and does not tell right from wrong, so no completion is right: "
        f"set evaluation.threshold, the least value of a right completion, or set "
        f"evaluation.accuracy to a reward that judges; --keep best takes the highest reward"
    )


def _no_prompts(parts: Parts, split: Split) -> str:
    share = f"prompts.held_out is {parts.config.prompts.held_out:g}"
    return f"--split {split}: the run has no such prompts ({share})"
