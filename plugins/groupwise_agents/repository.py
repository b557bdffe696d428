"""Repository: an environment in which the model works on files, by a shell and an editor."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any, Literal

from pydantic import Field

from groupwise.environment import Environment, Player
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise_agents.conversation import COLUMNS, converse, messages_of
from groupwise_agents.limits import Limits
from groupwise_agents.ordered import OrderedToolbox
from groupwise_agents.threads import in_thread
from groupwise_agents.tool import Tool, ToolError, Unavailable
from groupwise_sandbox.bubblewrap import FOLDER
from groupwise_sandbox.harbor import files_of, task_of
from groupwise_sandbox.interpreter import settings_of
from groupwise_sandbox.limits import Limits as OfPrograms
from groupwise_sandbox.process import Finished, SandboxError
from groupwise_sandbox.sandbox import Sandbox
from groupwise_sandbox.shell import CommandError, Setting, Shell
from groupwise_sandbox.tree import difference, edits_of

OUTPUT = 1 << 18
"""Bytes of what a command prints; one that prints more is ended."""


class Repository(Environment):
    """One policy that finds, edits and runs files, by bash and an editor in a sandbox of its own.

    Take it to train a model to repair or write programs of several files.
    """

    class Config(Limits):
        tools: list[Literal["bash", "edit"]] = Field(
            ["bash", "edit"], min_length=1, description="the tools that the model has"
        )
        deadline: float = Field(
            600.0,
            gt=0,
            description="seconds for a call, in which it may wait for others; commands end before",
        )
        seconds: float = Field(
            10.0,
            gt=0,
            description="processor time of each process of a command; five times as much may pass",
        )
        memory: int = Field(512, ge=16, description="memory of a command, in MiB")
        space: int = Field(64, ge=1, description="size of an episode's files, in MiB")
        python: str | None = Field(
            None, description="path of the Python that commands find; by default /usr's"
        )
        packages: list[str] = Field(
            [], description="folders that it imports from, such as an environment's site-packages"
        )
        checkouts: str | None = Field(
            None,
            description="a folder with clones `owner__name`, for rows with `repo` and "
            "`base_commit` in place of `files`",
        )
        parallel: int | None = Field(
            None, ge=1, description="commands at the same time; by default one for each processor"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises UserError where this machine has no shells."""
        self.config = config or self.Config()
        limits = OfPrograms(
            seconds=self.config.seconds, memory=self.config.memory << 20, output=OUTPUT
        )
        self.sandbox = Sandbox(limits=limits, parallel=self.config.parallel)
        if reason := self.sandbox.shell_refusal:
            self.sandbox.close()
            raise UserError(
                f"the environment `repository` has no shell here: {reason}; or take the "
                "environment `agent`, with an agent that has containers or a server of its own"
            )
        self._setting = settings_of(self.config.python, self.config.packages)
        nobody = Files(None)
        self.schemas = OrderedToolbox([getattr(nobody, each) for each in self.config.tools]).schemas

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(labels) > 1:
            raise UserError(f"one policy calls the tools, and there are {len(labels)} players")
        return super().casts(labels)

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return (*COLUMNS, "edited", "changes")

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        return COLUMNS

    def shown(self, labels: Sequence[str]) -> Sequence[str]:
        return ("changes",)

    def opening(self, row: Row) -> Row:
        return {**row, "prompt": messages_of(row), "tools": self.schemas}

    async def play(self, row: Row, players: Mapping[str, Player]) -> Mapping[str, Any]:
        (player,) = players.values()
        before = files_of(row, self.config.checkouts)
        links = {task_of(Path(row["task"])).place: FOLDER} if row.get("task") else {}
        setting = Setting(files=before, links=links, space=self.config.space << 20, **self._setting)
        with ExitStack() as stack:
            begin = partial(stack.enter_context, self.sandbox.shell(setting))
            shell: Shell = await in_thread(begin, "shell")
            files = Files(shell)
            tools = [Tool.of(getattr(files, each)) for each in self.config.tools]
            toolbox = OrderedToolbox(tools, deadline=self.config.deadline)
            talk = await converse(player, messages_of(row), toolbox, self.config)
            try:
                after = await in_thread(shell.files, "shell")
            except ValueError:  # more than can be read, which is the model's own doing
                after = dict(before)
        edits = edits_of(before, after)
        return {**talk.outcome, "edited": edits, "changes": difference(before, edits)}

    async def close(self) -> None:
        self.sandbox.close()


class Files:
    """The tools of an episode."""

    def __init__(self, shell: Shell | None) -> None:
        """shell: None for their schemas alone."""
        self._shell = shell

    def bash(self, command: str) -> str:
        """Run a command of bash in the folder of the files, which stay for later commands.

        Args:
            command: the command; what it has started ends with it
        """
        finished = self._run(command)
        text = finished.stdout.decode("utf-8", "replace")
        if finished.ended != "exit":
            return f"{text}\n[it {finished.why}]"
        return f"{text}\n[status {finished.status}]" if finished.status else text

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text, which occurs once in a file; an empty one stands for the whole file.

        Args:
            path: the file, by its name in the folder
            old: what is replaced; empty: the file is made, or written anew
            new: what stands there afterwards
        """
        if old:
            text = self._text(path)
            if (count := text.count(old)) != 1:
                raise ToolError(f"{path} has the old text {count} times, and has to have it once")
            new = text.replace(old, new)
        folder = quote(str(PurePosixPath(path).parent))
        written = self._run(f"mkdir -p -- {folder} && cat > {quote(path)}", new)
        if written.status != 0:
            raise ToolError(written.stdout.decode("utf-8", "replace").strip() or written.why)
        return "done"

    def _text(self, path: str) -> str:
        read = self._run(f"cat -- {quote(path)}")
        if read.status != 0:
            raise ToolError(read.stdout.decode("utf-8", "replace").strip()[-200:] or read.why)
        try:
            return read.stdout.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no text") from None

    def _run(self, command: str, stdin: str = "") -> Finished:
        assert self._shell is not None
        return _raising(partial(self._shell.run, command, stdin=stdin))


def _raising(run: Callable[[], Finished]) -> Finished:
    """Raises ToolError for a command that is none, Unavailable where the sandbox fails."""
    try:
        return run()
    except CommandError as error:
        raise ToolError(f"the command cannot be run: {error}") from error
    except SandboxError as error:
        raise Unavailable(f"the shell failed: {error}") from error
