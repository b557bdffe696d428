"""Completion: what the shell suggests for an incomplete argument.

If there are no suggestions, bash completes file names.
"""

from glob import escape
from pathlib import Path


def run_folders(incomplete: str) -> list[str]:
    """Folders of runs whose path begins with the text, and runs inside of such folders."""
    from groupwise.storage.files import RUN_INFO

    start = incomplete.rpartition("/")[2]
    folder = Path(incomplete.removesuffix(start))
    patterns = [f"{escape(start)}*/{RUN_INFO}", f"{escape(start)}*/*/{RUN_INFO}"]
    return sorted(str(path.parent) for pattern in patterns for path in folder.glob(pattern))


def plugin_names(incomplete: str) -> list[str]:
    """Registered names of any kind."""
    from groupwise.registry import installed

    return sorted({e.name for e in installed().entries if e.name.startswith(incomplete)})


def tasks(incomplete: str) -> list[str]:
    """Tasks of `groupwise init`."""
    from groupwise.cli.draft import drafts
    from groupwise.cli.draft import tasks as tasks_of

    names = {task for kind in drafts().values() for task in tasks_of(kind)}
    return sorted(name for name in names if name.startswith(incomplete))
