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
