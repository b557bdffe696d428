"""Writing: the pages as files. No file that is not a page of ours is replaced by one."""

import os
from collections.abc import Sequence
from pathlib import Path

from groupwise.storage.disk import read_text, write_text
from groupwise.storage.files import EVALUATED
from groupwise.storage.run_info import no_run
from groupwise_report import evaluation, page, several
from groupwise_report.document import MARK
from groupwise_report.run_data import check_runs, read_run

NAME, COMPARISON = "report.html", "comparison.html"


def write(folder: Path) -> Path:
    """One HTML page, `report.html`: metrics as charts, and completions with their rewards.

    folder: of a run or of an evaluation; the page is written there. Returns its path.
    """
    if (folder / EVALUATED).is_file():
        return _write(folder / NAME, evaluation.page(folder))
    return write_report(folder)


def write_report(run: Path, path: Path | None = None) -> Path:
    """Write a run's page, `report.html` in its folder if no path is given; return the path.

    Raises ValueError if the folder has no run, or if `path` is another file than a page of ours.
    """
    if not (run / "metrics.jsonl").is_file():
        raise ValueError(no_run(run, "metrics.jsonl"))
    if path is not None:
        _check_replaceable(path)
    return _write(path or run / NAME, page.page(read_run(run)))


def write_comparison(runs: Sequence[Path], path: Path | None = None) -> Path:
    """Write the page of several runs, beside them if no path is given; return the path.

    Raises ValueError if a folder has no run, or if a file that is not a page of ours would be
    overwritten.
    """
    check_runs(runs)
    if path is None:
        folder, here = Path(os.path.commonpath([r.resolve().parent for r in runs])), Path.cwd()
        path = (folder.relative_to(here) if folder.is_relative_to(here) else folder) / COMPARISON
    _check_replaceable(path)
    return _write(path, several.page([read_run(run) for run in runs]))


def _check_replaceable(path: Path) -> None:
    """Raise ValueError if the path is a folder, or a file that is not a page of ours."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file")
    if path.exists() and MARK not in read_text(path, errors="replace")[:1000]:
        raise ValueError(
            f"{path} is not a page of groupwise: name another file, or remove this one"
        )


def _write(path: Path, html: str) -> Path:
    # A model can write half a surrogate pair, which cannot be encoded.
    write_text(path, html, errors="replace")
    return path
