"""Display: shows a run, while it goes on, to the person who started it."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from groupwise.callback import RunContext
from groupwise.evaluation import Evaluation
from groupwise.kit import terminal
from groupwise.registry import installed

NAME = "console"
"""The registered name of the display that runs have where it is installed."""


class Display:
    """Notes and warnings on the standard error. Subclasses show more.

    As a context it may show what goes on meanwhile, which is in `groupwise.kit.progress`.

    quiet: show nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def silence(self) -> None:
        """Show nothing more: this is not the first process."""
        self.quiet = True

    def paused(self) -> AbstractContextManager[None]:
        """A context in which others print to the terminal."""
        return nullcontext()

    def say(self, message: str) -> None:
        """Show a note, a warning or another line."""
        if not self.quiet:
            terminal.say(message)

    def begin(
        self, run: RunContext, *, unit: str, labels: Collection[str], accuracy: str | None
    ) -> None:
        """All is loaded. unit: of decisions, such as "tokens"; labels: of the policies; accuracy:
        the reward that tells right from wrong, None if there is none."""

    def step(
        self, step: int, metrics: Mapping[str, Any], *, seconds: float, elapsed: float
    ) -> None:
        """Show a finished step, and the evaluation after it, which its metrics contain.

        seconds: of the step, with the evaluation; elapsed: those that count for `train.minutes`.
        """

    def evaluation(self, when: str, evaluation: Evaluation) -> None:
        """Show the evaluation "before" the first step or "after" the last one."""

    def changes(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Show what changed between these two evaluations."""


def installed_display(*, quiet: bool) -> Display:
    """The registered display, a plain one where none is installed."""
    registry = installed()
    if quiet or not registry.named("displays", NAME):
        return Display(quiet=quiet)
    shown: Display = registry.load("displays", NAME)(quiet=quiet)
    return shown
