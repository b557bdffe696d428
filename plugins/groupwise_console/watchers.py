"""Watchers: show the progress of a run: on a terminal, in a notebook, or as lines of a log.

They look at it now and then; the run itself never waits for them.
"""

import html
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from groupwise.kit import progress
from groupwise_console.step_line import StepLine, clock

LONG, FIRST = 3.0, 0.4
"""Seconds after which a phase before the first step gets a line in a log, and imports do, with
which a command begins."""
SILENT = 60.0
"""Seconds after which a log gets a line, if it had none."""
EVERY = 0.5
"""Seconds between two looks."""


def now() -> str:
    """What goes on, and for how long; "" if nothing does."""
    current = progress.current()
    text = str(current)
    return f"{text}  {clock(current.seconds)}" if text else ""


class Watcher(ABC):
    """logs: whether steps are printed one below the other."""

    logs = False

    def __init__(self, console: Console, line: StepLine) -> None:
        self.console, self.line = console, line

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def said(self) -> None:  # noqa: B027 - only a log has to know
        """A line was printed."""


class TerminalWatcher(Watcher):
    """Two lines that change, and are gone after the end: the last step with a bar, and what goes
    on."""

    def __init__(self, console: Console, line: StepLine) -> None:
        super().__init__(console, line)
        self._live: Live | None = None

    def start(self) -> None:
        self._live = Live(console=self.console, transient=True, get_renderable=self.render)
        self._live.start()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def render(self) -> RenderableType:
        table = Table.grid(padding=0)
        for row in self._rows():
            table.add_row(row)
        return table

    def _rows(self) -> Iterator[RenderableType]:
        line = self.line
        if not line.is_empty:
            step = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=line.steps, completed=line.done, width=line.bar)
            bars = [bar] if line.bar else []
            step.add_row(Text(line.place, style="bold"), *bars, Text(line.summary, no_wrap=True))
            yield step
        if text := now():
            yield Text(text, style="dim", no_wrap=True, overflow="ellipsis")


class PollingWatcher(Watcher):
    """Calls `look` in a thread, until it is stopped."""

    def __init__(self, console: Console, line: StepLine) -> None:
        super().__init__(console, line)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            self.look()

    @abstractmethod
    def look(self) -> None: ...


class LogWatcher(PollingWatcher):
    """A line for a phase before the first step that takes long, and for whatever goes on after a
    minute without any line."""

    logs = True

    def __init__(self, console: Console, line: StepLine) -> None:
        super().__init__(console, line)
        self._shown = ""
        self.said()

    def said(self) -> None:
        self._said = time.monotonic()

    def look(self) -> None:
        current = progress.current()
        name = f"{current.title}: {current.phase.name}"
        long = FIRST if current.title.startswith("importing") else LONG
        is_new = self.line.is_empty and name != self._shown and current.seconds > long
        if str(current) and (is_new or time.monotonic() - self._said > SILENT):
            self._shown = name
            self.console.print(now(), highlight=False, markup=False, soft_wrap=True)
            self.said()


class NotebookWatcher(PollingWatcher):
    """The two lines of a terminal in the output of a cell; they are empty after the end."""

    def __init__(self, console: Console, line: StepLine) -> None:
        super().__init__(console, line)
        self._handle: Any = None

    def start(self) -> None:
        from IPython.display import HTML, display

        self._handle = display(HTML(""), display_id=True)
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._handle is not None:
            self._show("")
            self._handle = None

    def look(self) -> None:
        lines = [] if self.line.is_empty else [str(self.line)]
        self._show("\n".join(filter(None, [*lines, now()])))

    def _show(self, text: str) -> None:
        from IPython.display import HTML

        self._handle.update(HTML(f"<pre>{html.escape(text)}</pre>" if text else ""))
