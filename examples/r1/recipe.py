"""A small version of DeepSeek-R1's recipe: its five stages, and R1-Zero, from one base model.

    python examples/r1/recipe.py --out runs/r1
    python examples/r1/recipe.py --out runs/r1 --seeds 0 1 2 --jobs 6 [train.dotted.key=value ...]

Every stage is a separate command with one thread, and its output appears only when it is complete:
started again, the recipe continues where it stopped. The results are a table, table.md, and a page,
report.html, with the model's metrics after each stage on the same held-out prompts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import documents
import how_to
import report
import sft

HERE = Path(__file__).parent
GROUPWISE = (sys.executable, "-m", "groupwise")
COLD = 200
"""Solutions in the cold start: enough to learn the format, and little more."""
GENERAL = {"size": 400, "refusals": 40}
"""Rows of the supervised stage that need no reasoning, and how many of requests that do harm."""
STEPS = {"zero": 70, "first": 40, "last": 40}
"""Steps of each GRPO run; half of those of the last are on sums, so R1-Zero has a few more."""
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A command and its output `makes`: a file or a folder; of a GRPO run its result.json.

    partly: the file that the command writes, if it is renamed to `makes` when complete.
    """

    name: str
    command: Sequence[str | Path]
    makes: Path
    log: Path
    partly: Path | None = None


def stages(
    folder: Path, seed: int, base: Path, *, prompts: int, overrides: Sequence[str] = ()
) -> dict[str, list[Stage]]:
    """The stages of R1 and of R1-Zero (a single one), for one seed.

    prompts: number for rejection sampling; overrides: options of every GRPO run.
    """

    def stage(name: str, makes: Path, *command: str | Path, partly: Path | None = None) -> Stage:
        log = folder / "logs" / f"{name}.log"
        return Stage(name=name, command=command, makes=makes, log=log, partly=partly)

    def train(name: str, file: str, model: Path, *settings: str) -> Stage:
        run = (*GROUPWISE, "train", HERE / file, "--auto-resume", f"output={folder / name}")
        own = (f"policy.model={model}", f"seed={seed}", *settings)
        return stage(name, folder / name / "result.json", *run, *own)

    def grpo(name: str, file: str, model: Path, *more: str) -> Stage:
        return train(name, file, model, f"train.steps={STEPS[name]}", *more, *overrides)

    def measured(name: str, model: Path) -> Stage:
        return train(f"{name}_measured", "last.yaml", model, "train.steps=0")

    def supervised(name: str, *data: Path) -> Stage:
        paths = ("--model", base, "--data", *data, "--output", folder / name)
        return stage(name, folder / name, sys.executable, HERE / "sft.py", *paths, f"--seed={seed}")

    def sample(run: str, name: str) -> Stage:
        partly = folder / f"{name}.part.jsonl"
        kept = ("--per-prompt", "8", "--keep", "best", "--prompts", str(prompts))
        command = (*GROUPWISE, "sample", folder / run, *kept, "--output", partly, "--overwrite")
        return stage(name, folder / f"{name}.jsonl", *command, partly=partly)

    return {
        "zero": [
            # In the paper, R1-Zero's rewards are accuracy and format only.
            grpo("zero", "grpo.yaml", base, "rewards.2.weight=0"),
            measured("base", base),
            measured("zero", folder / "zero" / "model"),
        ],
        "r1": [
            supervised("cold_start", folder.parent / "cold_start.jsonl"),
            measured("cold_start", folder / "cold_start"),
            grpo("first", "grpo.yaml", folder / "cold_start"),
            measured("first", folder / "first" / "model"),
            sample("first", "sampled"),
            # From the base again, as in the paper: only the samples of the first round are used.
            supervised("distilled", folder / "sampled.jsonl", folder.parent / "general.jsonl"),
            grpo("last", "last.yaml", folder / "distilled"),
        ],
    }


def run(chain: Sequence[Stage], report_line: Callable[[str], None]) -> None:
    """Run the stages in order, except finished ones. Raises SystemExit where one fails."""
    for stage in chain:
        if is_made(stage):
            report_line(f"{stage.name}: exists already")
            continue
        started, command = time.monotonic(), [str(part) for part in stage.command]
        stage.log.parent.mkdir(parents=True, exist_ok=True)
        with stage.log.open("w", encoding="utf-8") as log:
            failed = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env=ONE_THREAD, check=False
            ).returncode
        if failed:
            raise SystemExit(f"{stage.name} ended with {failed}; its output is in {stage.log}")
        if stage.partly is not None:
            stage.partly.rename(stage.makes)
        report_line(f"{stage.name}: {time.monotonic() - started:.0f} s")


def is_made(stage: Stage) -> bool:
    """Whether a stage is finished; an interrupted run has a result, too, and is continued."""
    if stage.makes.name != "result.json" or not stage.makes.exists():
        return stage.makes.exists()
    return not json.loads(stage.makes.read_text(encoding="utf-8"))["interrupted"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/r1"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--jobs", type=int, default=1, help="parallel commands; at most two per seed"
    )
    parser.add_argument("--base", type=Path, default=HERE / "base")
    parser.add_argument("--prompts", type=int, default=1000, help="for rejection sampling")
    options, overrides = parser.parse_known_args()
    if find_spec("trl") is None:
        raise SystemExit(sft.NEEDS)
    out, base = options.out.resolve(), options.base.resolve()
    write(out / "cold_start.jsonl", documents.cold_start(COLD))
    write(out / "general.jsonl", how_to.supervised(**GENERAL))

    def one(seed: int, chain: str) -> None:
        folder, more = out / f"seed{seed}", {"prompts": options.prompts, "overrides": overrides}
        run(
            stages(folder, seed, base, **more)[chain],
            lambda text: print(f"seed {seed}, {text}", flush=True),
        )

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, *zip(*product(options.seeds, ("r1", "zero")), strict=True)))
    print(report.write(out, options.seeds))


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
