"""`groupwise sample`: completions of a run's model: for a text, or as a rejection-sampled set."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from groupwise.cli.arguments import told_apart
from groupwise.cli.completion import run_folders
from groupwise.kit import terminal
from groupwise.kit.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from groupwise.run.reopening import Reopened
    from groupwise_commands.sampled_set import SampledSet
    from groupwise_commands.sampling import PromptSamples
    from groupwise_commands.selection import Selection

EVERY = 15.0
"""Seconds between lines of progress if the output is no terminal."""


def sample(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="the folder of a run", autocompletion=run_folders),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT | KEY=VALUE]...",
            help="texts to complete, which the run's template is put around, as around its "
            "prompts; and single values, as "
            "policy.evaluation.temperature=0.5",
        ),
    ] = None,
    *,
    per_prompt: Annotated[
        int | None,
        typer.Option("--per-prompt", help="completions drawn of each prompt; of a text 1 if unset"),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            "--step",
            help="of which checkpoint: a step, 0 (before training) or last; for texts several, "
            "shown side by side",
        ),
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="of a text the likeliest completion")
    ] = False,
    keep: Annotated[str, typer.Option("--keep", help="which: best, right or all")] = "best",
    at_most: Annotated[
        int | None,
        typer.Option("--at-most", help="keep at most so many completions of a prompt, the best"),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option("--prompts", help="how many prompts; all of the split if unset")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="which prompts: train or held-out")
    ] = "train",
    seed: Annotated[int, typer.Option("--seed", help="another number draws other completions")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", help="a .jsonl file; RUN/sampled.jsonl if unset")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an older file")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print no progress")] = False,
) -> None:
    """Draw completions of a run's model: of texts, or of its prompts.

    groupwise sample RUN "1 + 1 =" --step 0 --step last     prints completions side by side

    groupwise sample RUN --per-prompt 8                     writes the best of each prompt
    """
    texts, overrides = told_apart(arguments or ())
    steps = [step_of(each) for each in step or ["last"]]
    if texts:
        of_sets = {"--prompts": prompts, "--output": output, "--at-most": at_most}
        if named := [name for name, value in of_sets.items() if value is not None]:
            raise UserError(f"{named[0]} is of a set; completions of texts are only printed")
        from groupwise_commands.answering import answer

        answer(
            run,
            texts,
            overrides,
            steps,
            count=1 if per_prompt is None else per_prompt,
            seed=seed,
            greedy=greedy,
        )
        return
    if per_prompt is None:
        raise UserError(
            'give a text to complete, as `groupwise sample RUN "1 + 1 ="`, or --per-prompt N for a '
            "set of completions of the run's prompts"
        )
    if len(steps) > 1 or greedy:
        raise UserError(
            "a set has the completions of one checkpoint, none of them greedy: give one --step"
        )
    from groupwise_commands.sampled_set import SampledSet
    from groupwise_commands.selection import Selection

    chosen = Selection(
        per_prompt=per_prompt,
        keep=keep,  # type: ignore[arg-type]
        at_most=at_most,
        prompts=prompts,
        split=split,  # type: ignore[arg-type]
        seed=seed,
    )
    target = SampledSet(output or run / "sampled.jsonl", overwrite=overwrite)

    from rich.console import Console

    from groupwise.run.reopening import reopened

    with reopened(run, overrides, step=steps[0]) as opened:
        chief = opened.state.is_world_process_zero
        console, tally = Console(stderr=True, quiet=quiet or not chief), Tally()
        try:
            _draw(opened, chosen, target if chief else None, tally, console)
        except BaseException:
            if tally.prompts and chief:
                typer.echo(f"stopped: {tally}: {target.path}", err=True)
            raise
        for why in opened.failures.values() if chief else ():
            terminal.say(f"warning: {why}")
        if chief:
            typer.echo(f"{tally}: {target.path}")
            if prompts is not None and tally.prompts < prompts:
                typer.echo(f"note: there are no more than {tally.prompts:,} such prompts", err=True)


def step_of(text: str) -> int | None:
    """The step of a checkpoint; None for the last one. Raises UserError for anything else."""
    if text == "last":
        return None
    if not text.isdecimal():
        raise UserError(f"--step: expected a step, 0 or last, found {text!r}")
    return int(text)


def _draw(
    run: "Reopened",
    selection: "Selection",
    target: "SampledSet | None",
    tally: "Tally",
    console: "Console",
) -> None:
    """Sample and write the set prompt by prompt; target: None on processes that write nothing."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from groupwise_commands.sampling import sampled_prompts

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    with progress, target or nullcontext():
        task = progress.add_task("", total=selection.prompts)
        printed = time.monotonic()
        for prompt in sampled_prompts(run, selection):
            if target is not None:
                target.write(prompt.kept)
            tally.add(prompt)
            progress.update(task, completed=tally.prompts, description=str(tally))
            if not console.is_terminal and time.monotonic() - printed > EVERY:
                printed = time.monotonic()
                console.print(str(tally), highlight=False, markup=False)


@dataclass
class Tally:
    """Counts of sampled and kept completions so far; as a string, one line."""

    prompts: int = 0
    samples: int = 0
    scored: int = 0
    judged: int = 0
    right: int = 0
    reward: float = 0.0
    kept: int = 0
    prompts_kept: int = 0

    def add(self, prompt: "PromptSamples") -> None:
        rewards = [s["total"] for s in prompt.samples if s["total"] is not None]
        rights = [s["right"] for s in prompt.samples if s["right"] is not None]
        self.prompts += 1
        self.samples += len(prompt.samples)
        self.scored += len(rewards)
        self.reward += math.fsum(rewards)
        self.judged += len(rights)
        self.right += sum(rights)
        self.kept += len(prompt.kept)
        self.prompts_kept += bool(prompt.kept)

    def __str__(self) -> str:
        unscored = self.samples - self.scored
        parts = [
            f"{self.prompts:,} prompts",
            f"{self.samples:,} completions",
            f"{self.right / self.judged:.1%} right" if self.judged else "",
            f"mean reward {self.reward / self.scored:.3g}" if self.scored else "",
            f"{unscored:,} without a reward" if unscored else "",
            f"kept {self.kept:,}, of {self.prompts_kept:,} prompts",
        ]
        return ", ".join(filter(None, parts))
