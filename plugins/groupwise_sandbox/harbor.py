"""Harbor: tasks in the format of that name, as far as no image has to be built for them.

A task is a folder: `instruction.md`, `environment/` with a Dockerfile and what it copies, and
`tests/` with `test.sh`, which writes a reward. https://www.harborframework.com/docs/tasks
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from groupwise_sandbox.tree import Tree, below, tree_of

REWARDS = ("/logs/verifier/reward.txt", "/logs/verifier/reward.json")
_IGNORED = ("FROM", "LABEL", "CMD", "ENTRYPOINT")
_TAKEN = ("/", "/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc", "/dev", "/tmp", "/proc", "/sys")


@dataclass(frozen=True)
class Task:
    """A task that was read."""

    instruction: str
    place: str
    """Where the agent works: an absolute path."""
    files: Tree
    """What is there at first."""
    tests: Tree

    @property
    def links(self) -> dict[str, str]:
        """Of a shell: what the task's own paths lead to."""
        return {self.place: "/folder", "/tests": "/tmp/tests", "/logs": "/tmp/logs"}


def task_of(folder: Path) -> Task:
    """The task in a folder. Raises ValueError where there is none, or its image has to be built."""
    wanted = ("instruction.md", "environment/Dockerfile", "tests/test.sh")
    if missing := [each for each in wanted if not (folder / each).is_file()]:
        raise ValueError(f"{folder} is no task of Harbor's format: there is no {missing[0]}")
    instruction, docker, _ = (folder / each for each in wanted)
    place, files = "/", dict[str, bytes]()
    for line in _lines(docker.read_text(encoding="utf-8")):
        name, *words = shlex.split(line)
        if name.upper() == "WORKDIR" and len(words) == 1 and not files:
            place = str(PurePosixPath(place, words[0]))
        elif name.upper() == "COPY" and len(words) > 1 and not words[0].startswith(("-", "[")):
            files |= dict(_copied(docker.parent, words[:-1], words[-1], place))
        elif name.upper() not in _IGNORED:
            raise ValueError(f"its image has to be built, and none is here: {line[:60]!r}")
    if any(place == each or (each != "/" and place.startswith(f"{each}/")) for each in _TAKEN):
        raise ValueError(f"its WORKDIR is {place!r}, which is the machine's own here")
    return Task(instruction.read_text(encoding="utf-8"), place, files, below(folder / "tests"))


def files_of(row: Mapping[str, Any], checkouts: str | None = None) -> Tree:
    """The files of a row: of its `task`, or `tree_of` it. Raises ValueError."""
    return task_of(Path(row["task"])).files if row.get("task") else tree_of(row, checkouts)


def _lines(text: str) -> Iterator[str]:
    """The instructions of a Dockerfile."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def _copied(
    context: Path, sources: Sequence[str], target: str, place: str
) -> Iterator[tuple[str, bytes]]:
    """Names, as they are seen from the place, and contents of what a COPY brings there."""
    goal = PurePosixPath(place, target)
    if place == "/" or ".." in goal.parts or not goal.is_relative_to(place):
        raise ValueError(f"its image has to be built: it has files in {target!r}")
    within = goal.relative_to(place)
    for each in sources:
        path = (context / each).resolve()
        if not path.is_relative_to(context.resolve()) or not path.exists():
            raise ValueError(f"its Dockerfile copies {each!r}, which is not beside it")
        if path.is_dir():
            yield from ((str(within / name), data) for name, data in below(path).items())
        else:
            is_folder = target.endswith(("/", ".")) or len(sources) > 1
            yield str(within / path.name if is_folder else within), path.read_bytes()
