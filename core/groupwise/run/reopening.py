"""Reopening: a run's last checkpoint, for sampling and scoring, without optimizer."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from groupwise import processes
from groupwise.config.objects import Objects
from groupwise.evaluation import Sample
from groupwise.prompt_source import Row
from groupwise.rewards import RunState
from groupwise.run import snapshot
from groupwise.run.build import build_parts, open_evaluator
from groupwise.run.interruption import orderly
from groupwise.run.parts import Parts
from groupwise.run.split import Split, prompts_of
from groupwise.storage.checkpoint import KEPT, Checkpoints, read_weights
from groupwise.storage.files import BEFORE, CHECKPOINTS
from groupwise.storage.run_info import check_kept, check_objects, identity, run_config, written
from groupwise.storage.samples import read_samples, with_completions
from groupwise.training.evaluator import Evaluator
from groupwise.training.learner import AVERAGE
from groupwise.training.threads import following_load

AVERAGED = f"{KEPT}{AVERAGE}"
"""The file of the averaged weights in a checkpoint."""
BATCHES = 4
"""Batches that a process samples before results are returned. Async and isolated rewards score each
batch but the last while the next is sampled."""


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """The parts of a run, its evaluator with the checkpoint's weights, and the step it was at."""

    parts: Parts
    evaluator: Evaluator
    state: RunState

    @property
    def accuracy(self) -> str | None:
        """The reward that decides which completions are right; None if none does."""
        return self.evaluator.judge.name

    @property
    def failures(self) -> Mapping[str, str]:
        """By cause, a sentence on a completion that failed."""
        return self.evaluator.failures

    def samples(
        self, split: Split, size: int, *, prompts: int | None = None, seed: int = 0
    ) -> Iterator[tuple[Row, list[Sample]]]:
        """Each prompt of the split with `size` scored completions, the same on all processes.

        prompts: only so many of them; seed: another number draws other completions, none draws
        those of training or evaluation again. Raises UserError if the split has no prompts.
        """
        evaluator, sampler = self.evaluator, self.evaluator.sampler
        sampler.follow({}, self.state.global_step)
        draws = prompts_of(self.parts, split, prompts)
        space = f"sample {seed}"
        # Prompts of one batch on all processes together.
        batch = min(max(1, s.batch // size) * s.process[1] for s in sampler.samplings.values())
        while chunk := list(islice(draws, batch * BATCHES)):
            drawn = evaluator.samples(chunk, size, self.state, space=space, greedy=False)
            samples: list[Sample] = gather_object([*drawn])
            evaluator.failures = processes.first_of(evaluator.failures)
            samples.sort(key=lambda each: (each["draw"], each.get("learner", ""), each["index"]))
            rows = {draw.number: draw.row for draw in chunk}
            for number, of_prompt in groupby(samples, key=itemgetter("draw")):
                yield rows[number], [*of_prompt]


@contextmanager
def reopened(
    run: Path, overrides: Sequence[str] = (), objects: Objects | None = None
) -> Iterator[Reopened]:
    """Open a run with its own configuration and overrides; averaged weights if it has them.

    Signals that end the process raise KeyboardInterrupt meanwhile, so that all is closed.

    objects: the Python objects that were passed to the run, by the key path of their section.
    """
    with orderly(), _opened(run, overrides, objects) as opened:
        yield opened


@contextmanager
def _opened(run: Path, overrides: Sequence[str], objects: Objects | None) -> Iterator[Reopened]:
    loaded = replace(run_config(run, overrides), objects=objects or {})
    accelerator = processes.accelerator()
    processes.check_same(written(loaded.config))
    learners = {n: x for n, x in loaded.config.learners.items() if x.learns}
    names = [
        f"{snapshot.prefix(label)}{name}"
        for label, learning in learners.items()
        for name in ("weights", *([AVERAGED] if learning.train.ema is not None else []))
    ]
    checkpoint = Checkpoints(run / CHECKPOINTS).load(names, check=check_of(run))
    for note in checkpoint.passed:
        print(f"note: {note}", file=sys.stderr)
    check_objects(run, loaded.objects)
    check_kept(checkpoint.state["names"], loaded.config)
    parts = build_parts(loaded)
    with (
        following_load(accelerator.device) as threads,
        open_evaluator(parts, accelerator, threads) as evaluator,
    ):
        for label in learners:
            own = snapshot.of_learner(checkpoint, label)
            kept = AVERAGE if AVERAGED in own.tensors else None
            read_weights(evaluator.sampler.samplings[label].policy, own, kept=kept)
        parts.rewards.load_state_dict(checkpoint.state["rewards"])
        if evaluator.references is not None:
            evaluator.references.remember(_first_samples(run))
        state = RunState(
            global_step=checkpoint.state["step"],
            max_steps=loaded.config.train.steps,
            epoch=checkpoint.state["prompts"]["position"] / len(parts.prompts.source),
            is_world_process_zero=accelerator.is_main_process,
            is_local_process_zero=accelerator.is_local_main_process,
        )
        yield Reopened(parts=parts, evaluator=evaluator, state=state)


def _first_samples(run: Path) -> list[dict[str, Any]]:
    """The samples of the run's first evaluation; without them a note."""
    try:
        return with_completions(read_samples(run / BEFORE), run)
    except ValueError as error:
        print(f"note: there is no first evaluation to compare with: {error}", file=sys.stderr)
        return []


def check_of(run: Path) -> Callable[[Mapping[str, Any]], None]:
    """A check that raises ValueError for an invalid state, or one of another run."""
    known = identity(run)

    def check(state: Mapping[str, Any]) -> None:
        snapshot.check_state(state)
        of_run = known is None or state.get("run") == known
        if not of_run or not isinstance(state.get("names"), Mapping):
            raise ValueError("state.json is of another run")

    return check
