"""Reopening: a run's last checkpoint, for sampling and scoring, without optimizer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from groupwise.building.build import build_parts, open_evaluator
from groupwise.building.parts import Parts
from groupwise.building.split import Split, prompts_of
from groupwise.building.stand_ins import with_stand_ins
from groupwise.config.load import LoadedConfig
from groupwise.config.objects import Objects
from groupwise.config.sections import RunConfig
from groupwise.display import installed_display
from groupwise.episodes.threads import following_load
from groupwise.evaluation import Sample
from groupwise.evaluator.evaluator import Evaluator
from groupwise.kit import processes, progress, terminal
from groupwise.kit.errors import UserError
from groupwise.learning.learner import AVERAGE
from groupwise.plugins.resolved import resolve
from groupwise.prompt_source import Row, row_of
from groupwise.record import Group
from groupwise.record.gather import judged
from groupwise.recording import snapshot
from groupwise.rewards import RunState
from groupwise.run.interruption import orderly
from groupwise.sampler import Purpose
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.files import BEFORE, CHECKPOINTS
from groupwise.storage.run_info import check_kept, check_objects, identity, run_config, written
from groupwise.storage.samples import read_samples, with_completions
from groupwise.storage.saved import KEPT, Saved, read_weights

AVERAGED = f"{KEPT}{AVERAGE}"
"""The file of the averaged weights in a checkpoint."""
BATCHES = 4
"""Batches that a process samples before results are returned. Async and isolated rewards score each
batch but the last while the next is sampled."""


@dataclass(frozen=True, kw_only=True)
class SampledReply:
    """A completion of a text. label: of its policy, "" if there is only one; length: decisions;
    ended: why it ended, as `Rollouts.ended`."""

    completion: Any
    label: str
    length: int
    ended: str


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """The parts of a run, its evaluator with the checkpoint's weights, and the step it was at."""

    run: Path
    parts: Parts
    evaluator: Evaluator
    state: RunState

    def at(self, step: int | None) -> "Reopened":
        """The same with the weights of another checkpoint, the last one if None; not those before
        the first step, which only a run that is just opened has."""
        return self.with_weights(_read(self.run, self.parts.config, step))

    def with_weights(self, checkpoint: Saved) -> "Reopened":
        """The same with the weights and the state of a checkpoint."""
        evaluator, state = self.evaluator, checkpoint.state
        for label, learning in self.parts.config.learners.items():
            if learning.learns:
                of_learner = snapshot.of_learner(checkpoint, label)
                kept = AVERAGE if AVERAGED in of_learner.tensors else None
                read_weights(evaluator.sampler.samplings[label].policy, of_learner, kept=kept)
        self.parts.rewards.load_state_dict(state["rewards"])
        evaluator.sampler.forget()
        epoch = state["prompts"]["position"] / len(self.parts.prompts.source)
        return replace(self, state=replace(self.state, global_step=state["step"], epoch=epoch))

    def prompt_of(self, text: str) -> Any:
        """The prompt in which the run's template puts a text; messages where its prompts are."""
        return row_of(self.parts.prompts.source, text)["prompt"]

    def replies(
        self, texts: Sequence[str], size: int, *, seed: int = 0, greedy: bool = False
    ) -> list[list[SampledReply]]:
        """`size` completions of each text, by every cast; nothing is scored.

        A text stands where a row of the run's prompts has its prompt: in its template, and in a
        message of the user. On one process only. Raises UserError if it cannot.
        """
        sampler, source = self.evaluator.sampler, self.parts.prompts.source
        sampler.follow({}, self.state.global_step)
        groups = [Group(number, row_of(source, text)) for number, text in enumerate(texts)]
        purpose: Purpose = "greedy" if greedy else "evaluate"
        replies: list[list[SampledReply]] = [[] for _ in texts]
        for cast in sampler.casts:
            space = f"text {seed}"
            parts = sampler.evaluate(cast, groups, size, purpose, space=space)
            for group in (group for part in parts for group in part):
                rollouts = judged([*group.judged], sampler.columns)
                replies[group.number] += [
                    SampledReply(
                        completion=rollouts.completions[row],
                        label=call.label if len(sampler.samplings) > 1 else "",
                        length=int(rollouts.lengths[row]),
                        ended=rollouts.ended[row],
                    )
                    for row, call in enumerate(group.judged)
                ]
                for episode in group.episodes:
                    if episode.is_lost:
                        raise UserError(f"the environment failed on the text: {episode.failure}")
        return replies

    @property
    def accuracy(self) -> str | None:
        """The reward that decides which completions are right; None if none does."""
        return self.evaluator.accuracy.name

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
    run: Path,
    overrides: Sequence[str] = (),
    objects: Objects | None = None,
    *,
    step: int | None = None,
    scored: bool = True,
    quiet: bool = True,
) -> Iterator[Reopened]:
    """Open a run with its own configuration and overrides; averaged weights if it has them.

    Signals that end the process raise KeyboardInterrupt meanwhile, so that all is closed.

    objects: the Python objects that were passed to the run, by the key path of their section; step:
    of the checkpoint, the last one if unset; 0 for the weights before the first step; scored: False
    for completions of texts alone: prompts and rewards that were Python objects then need not be
    passed, and there is nothing to evaluate; quiet: False to show meanwhile what is being done.
    """
    with installed_display(quiet=quiet), orderly():
        progress.start("loading")
        loaded = replace(run_config(run, overrides), objects=objects or {})
        with _opened(run, loaded if scored else with_stand_ins(loaded, run), step) as opened:
            progress.start("sampling")
            yield opened


@contextmanager
def _opened(run: Path, loaded: LoadedConfig, step: int | None) -> Iterator[Reopened]:
    accelerator = processes.accelerator()
    processes.check_same(written(loaded.config))
    checkpoint = _read(run, loaded.config, step or None)  # early, before models are loaded
    check_objects(run, loaded.objects)
    check_kept(checkpoint.state["names"], loaded.config)
    parts = build_parts(resolve(loaded))
    with (
        following_load(accelerator.device) as threads,
        open_evaluator(parts, accelerator, threads) as evaluator,
    ):
        if evaluator.references is not None:
            evaluator.references.remember(_first_samples(run))
        state = RunState(
            max_steps=parts.config.train.steps,
            is_world_process_zero=accelerator.is_main_process,
            is_local_process_zero=accelerator.is_local_main_process,
        )
        opened = Reopened(run=run, parts=parts, evaluator=evaluator, state=state)
        yield opened if step == 0 else opened.with_weights(checkpoint)


def _read(run: Path, config: RunConfig, step: int | None) -> Saved:
    """The checkpoint of a step, the last one if None, with what sampling needs of it."""
    names = [
        f"{snapshot.prefix(label)}{name}"
        for label, learning in config.learners.items()
        if learning.learns
        for name in ("weights", *([AVERAGED] if learning.train.ema is not None else []))
    ]
    checkpoint = Checkpoints(run / CHECKPOINTS).load(names, check=check_of(run), step=step)
    for note in checkpoint.passed:
        terminal.say(f"note: {note}")
    return checkpoint


def _first_samples(run: Path) -> list[dict[str, Any]]:
    """The samples of the run's first evaluation; without them a note."""
    try:
        return with_completions(read_samples(run / BEFORE), run)
    except ValueError as error:
        terminal.say(f"note: there is no first evaluation to compare with: {error}")
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
