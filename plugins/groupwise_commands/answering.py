"""Answering: completions of texts by one or several checkpoints of a run, printed side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from groupwise.kit import media
from groupwise.kit.errors import UserError
from groupwise.kit.terminal import printable
from groupwise.run.reopening import Reopened, SampledReply, reopened
from groupwise_messages.texts import content_in_words, in_words

COLUMN = 24
"""The least columns of a terminal for each checkpoint; with less room they are one below the
other."""


def answer(
    run: Path,
    texts: Sequence[str],
    overrides: Sequence[str],
    steps: Sequence[int | None],
    *,
    count: int,
    seed: int,
    greedy: bool,
) -> None:
    """Print `count` completions of each text by the checkpoints of these steps, None for the last.

    Images and videos are saved into a new folder in RUN/sampled/, and their paths printed.
    """
    if count < 1:
        raise UserError(f"--per-prompt: expected at least 1 completion, found {count}")
    answers, prompts = dict[int, list[list[str]]](), list[str]()
    images = cache(partial(_fresh, run / "sampled"))
    for opened in _checkpoints(run, overrides, steps):
        step = opened.state.global_step
        if not opened.state.is_world_process_zero:
            raise UserError("completions of texts are drawn by one process: start only one")
        prompts = [printable(_words(opened.prompt_of(text))) for text in texts]
        replies = opened.replies(texts, count, seed=seed, greedy=greedy)
        answers[step] = [
            [
                _said(reply, images, f"step_{step}_text_{number}_{index}")
                for index, reply in enumerate(of_text)
            ]
            for number, of_text in enumerate(replies)
        ]
    console = Console()
    for number, prompt in enumerate(prompts):
        console.print(Text(prompt, style="bold"), soft_wrap=True)
        _print(console, {step: of_step[number] for step, of_step in answers.items()})


def _checkpoints(
    run: Path, overrides: Sequence[str], steps: Sequence[int | None]
) -> Iterator[Reopened]:
    """The run with the weights of each checkpoint, those before the first step first."""
    first, *others = sorted(dict.fromkeys(steps), key=lambda step: (step is None, step or 0))
    with reopened(run, overrides, step=first, scored=False, quiet=False) as opened:
        yield opened
        for step in others:
            yield opened.at(step)


def _print(console: Console, answers: Mapping[int, Sequence[str]]) -> None:
    """The completions of one text by each checkpoint, one column or one section for each."""
    if len(answers) > 1 and console.is_terminal and console.width >= COLUMN * len(answers):
        table = Table(box=box.SIMPLE_HEAD, show_lines=True, expand=True)
        for step in answers:
            table.add_column(f"step {step}", ratio=1, overflow="fold")
        for row in zip(*answers.values(), strict=True):
            table.add_row(*map(Text, row))
        console.print(table)
        return
    for step, replies in answers.items():
        for reply in replies:
            if len(answers) > 1 or len(replies) > 1:
                console.print(Text(f"--- step {step}", style="dim"))
            console.print(Text(reply), soft_wrap=True)


def _fresh(folder: Path) -> Path:
    """A new folder in this one, with the first number that is free."""
    folder.mkdir(exist_ok=True)
    for number in count(1):
        with suppress(FileExistsError):
            (folder / str(number)).mkdir()
            break
    return folder / str(number)


def _said(reply: SampledReply, images: Callable[[], Path], name: str) -> str:
    """A completion as text; of an image or a video, which is saved under this name, the file.

    images: returns the folder for them.
    """
    completion = reply.completion
    if callable(getattr(completion, "save", None)):
        words = str(media.write(completion, images() / name))
    else:
        words = _words(completion)
    ended = "" if reply.ended == "stop" else f"\n[ended: {reply.ended}]"
    label = f"[{reply.label}] " if reply.label else ""
    return printable(f"{label}{words}{ended}")


def _words(value: Any) -> str:
    return _conversation(value) if isinstance(value, list) else str(value)


def _conversation(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages; the role of one that stands alone and calls nothing is not said."""
    if len(messages) == 1 and not messages[0].get("tool_calls"):
        return content_in_words(messages[0].get("content"))
    return "\n".join(map(in_words, messages))
