"""What only a GPU can show, measured in rows of less than ten minutes and put on one page.

    python tests/benchmarks/on_gpu.py --out runs/gpu             # everything, then page.md
    python tests/benchmarks/on_gpu.py tests decoding --out runs/gpu               # these pieces
    python tests/benchmarks/on_gpu.py page --out runs/gpu        # the page, of what is there
    python tests/benchmarks/on_gpu.py --device cpu --toy --out runs/toy           # a trial

Every row is a process of its own, whose result becomes a line of `results.jsonl` when it ends. Its
output is in `logs/`, models and checkpoints are in `work/`: what to keep are the other files. A row
that has a result is not measured again, so where commands are cut off after ten minutes, repeat
`on_gpu.py --minutes 9` until nothing is left. A row whose packages or files are missing says so on
the page, and the others go on; `--retry` measures those and failed ones again.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from gpu_page import PAGE, Line, read, write
from gpu_rows import PIECES, TASKS, Row, Setup, rows

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = "results.jsonl"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pieces", nargs="*", choices=[[], *PIECES, "page"], help="all if none")
    parser.add_argument("--out", type=Path, required=True, help="folder of results and page")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--toy", action="store_true", help="tiny models, to try the script itself")
    parser.add_argument("--minutes", type=float, help="begin no row that may end after these")
    parser.add_argument("--retry", action="store_true", help="measure again what gave no figures")
    parser.add_argument("--curve-minutes", type=float, default=20, help="of training, each side")
    parser.add_argument("--task", choices=TASKS, default=TASKS[0], help="of the curve")
    parser.add_argument("--smollm", type=Path, default=ROOT / "examples" / "smollm" / "model")
    options = parser.parse_args(arguments)
    settings = {key: getattr(options, key) for key in Setup.__annotations__}
    setup = Setup(**{**settings, "out": options.out.resolve()})
    setup.work.mkdir(parents=True, exist_ok=True)
    left = measure_all(rows(setup, options.pieces), setup, options.minutes, retry=options.retry)
    write(setup.out)
    print(f"{setup.out / PAGE}{f'; {left} rows left: call it again' if left else ''}")


def measure_all(planned: Sequence[Row], setup: Setup, minutes: float | None, *, retry: bool) -> int:
    """Measures the rows that have no result yet; returns the number of those left for lack of time.

    minutes: of this call. Its first row is measured in any case.
    """
    known = {(line["piece"], line["row"]): line for line in read(setup.out)}
    todo = [row for row in planned if _is_due(known.get((row.piece, row.name)), retry=retry)]
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for number, row in enumerate(todo):
        seconds = 60 * row.minutes
        if end is not None:
            if number and time.monotonic() + seconds > end:
                return len(todo) - number
            seconds = min(seconds, end - time.monotonic())
        print(f"{row.piece}: {row.name} ...", end=" ", flush=True)
        line = result(row, setup, seconds)
        print(line.get("problem") or f"{line['wall']:.0f} s", flush=True)
        with (setup.out / RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        write(setup.out)
    return 0


def _is_due(line: Line | None, *, retry: bool) -> bool:
    return line is None or (retry and "problem" in line)


def result(row: Row, setup: Setup, seconds: float) -> dict[str, Any]:
    """The line of a row: what its process printed last, or the `problem` that prevented it."""
    command = shlex.join(["python", *(part.removeprefix(f"{ROOT}/") for part in row.command)])
    line = {"piece": row.piece, "row": row.name, "command": command, "toy": setup.toy}
    missing = [name for name in row.needs if importlib.util.find_spec(name) is None]
    if row.blocked or missing:
        return {**line, "problem": row.blocked or f"not installed: {', '.join(missing)}"}
    log = setup.out / "logs" / re.sub(r"\W+", "_", f"{row.piece} {row.name}")
    log.parent.mkdir(exist_ok=True)
    started = time.monotonic()
    with log.with_suffix(".out").open("w") as out, log.with_suffix(".err").open("w") as error:
        status = run([sys.executable, *row.command], environment(setup), out, error, seconds)
    line["wall"] = time.monotonic() - started
    if status is None:
        return {**line, "problem": f"stopped after {seconds:.0f} s"}
    printed = _last_line(log.with_suffix(".out"))
    if status or not printed.startswith("{"):
        reason = _last_line(log.with_suffix(".err")) or printed
        return {**line, "problem": reason[:200] or f"exit code {status}"}
    return {**line, **json.loads(printed)}


def run(
    command: Sequence[str], env: Mapping[str, str], out: Any, error: Any, seconds: float
) -> int | None:
    """The exit code, or None if the process and its children had to be killed."""
    # In a group, not a session of its own, so that whoever ends this script's session ends it too.
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=out, stderr=error, process_group=0
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def environment(setup: Setup) -> dict[str, str]:
    """That of a row: the packages of this tree, no model hub, and on `--device cpu` no GPU."""
    paths = [str(ROOT / name) for name in ("core", "plugins", "rewards")]
    if not entry_points(group="groupwise"):
        paths.append(str(registered(setup.work / "registered")))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    env |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return env | ({"CUDA_VISIBLE_DEVICES": ""} if setup.device == "cpu" else {})


def registered(folder: Path) -> Path:
    """A folder that registers this tree's plugins where the package itself is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / "groupwise-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: groupwise\nVersion: 0\n", "utf-8")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {where}" for name, where in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), "utf-8")
    return folder


if __name__ == "__main__":
    main()
