"""Trains the examples at two commits, and says whether they come out the same to the last bit.

    python .ci/compare.py main                        # the working tree against main
    python .ci/compare.py v0.1.0 main --examples shapes chain --steps 5
    python .ci/compare.py main --allow draw_look      # what differs there is shown, and no failure

Use it for a change that should change no result. Each example is trained for a few steps at BASE,
then at HEAD, each in a checkout of its own, on one thread, with the packages of this environment.
Compared are metrics but for times and memory, samples of training and evaluation with their
pictures, and every tensor of models and checkpoints. No results are kept to compare with, since
processors round differently. The exit code is 1 if an example differs, or cannot be run.
"""

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROJECTS = (".", "examples/ppo", "examples/third_party")
"""Folders of packages with plugins."""
METADATA = "metadata"
"""The folder of a checkout that has their entry points."""
VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
WIDTH = 60
"""How many characters of a value are printed."""

# ---- the examples, and what makes them small

TEXT = ("train.groups_per_step=4", "train.group_size=4", "evaluation.prompts=8")
FEW = ("train.groups_per_step=2", "evaluation.prompts=4")
DRAWING = ("steps=4", "evaluation_steps=4", "window.size=2")
PICTURES = (
    *(*FEW, "train.group_size=4", "evaluation.samples=1"),
    *(f"policy.{each}" for each in DRAWING),
)
EXAMPLES = {
    "arithmetic": (*TEXT, "evaluation.every=2"),
    "shapes": PICTURES,
    "glyphs": PICTURES,
    "chain": (
        *(*FEW, "players.0.train.group_size=3", "players.1.train.group_size=3"),
        *(f"players.1.policy.{each}" for each in DRAWING),
    ),
    "pool": TEXT,
    "calculator": TEXT,
    "nim": (*TEXT, "evaluation.every=2"),
    "moving": PICTURES,
    "recolor": (
        *(*FEW, "train.group_size=4", "evaluation.samples=1", "prompts.size=200"),
        *(f"policy.{each}" for each in ("steps=4", "evaluation_steps=4", "decisions=2")),
    ),
    "safety": (*TEXT, "evaluation.every=0"),
    "judge": (*PICTURES, "rewards.0.opponents=2"),
    "iterative": (*TEXT, "rewards.0.examples=8"),
    "draw_look": (
        *(*FEW, "players.0.train.group_size=2", "players.1.train.group_size=3"),
        *(f"players.0.policy.{each}" for each in DRAWING),
    ),
    "ppo": ("train.groups_per_step=8", "train.updates_per_rollout=4", "evaluation.prompts=8"),
    "third_party": TEXT,
    "clip_shapes": PICTURES,
    "code_hacks": TEXT,
    "code_world": TEXT,
    "count_shapes": (*TEXT, "evaluation.samples=1", "prompts.size=300"),
    "held_length": TEXT,
    "repair": TEXT,
    "right_and_short": TEXT,
    "word_game": TEXT,
}
FILES = {
    "judge": "judge/painter.yaml",
    "iterative": "iterative/run.yaml",
    "ppo": "ppo/train.yaml",
    "third_party": "third_party/train.yaml",
}
"""Configurations that are not NAME.yaml."""
SCRIPTS = {
    "iterative": (
        *("examples/iterative/make_judge.py", "--output", "runs/iterative/judge"),
        *("--examples", "16", "--epochs", "1"),
    ),
}
"""What is run before an example is."""


# ---- running them


def tree(commit: str | None) -> str:
    """The tree of a commit; for None that of the working tree, without what is ignored."""

    def git(*arguments: str, **variables: str) -> str:
        environment = {**os.environ, **variables}
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE
        )
        if done.returncode:
            sys.exit(f"git {' '.join(arguments)} failed")
        return done.stdout.decode().strip()

    if commit is not None:
        return git("rev-parse", "--verify", f"{commit}^{{tree}}")
    with tempfile.TemporaryDirectory() as folder:  # what is staged stays as it is
        index = str(Path(folder) / "index")
        git("add", "--all", GIT_INDEX_FILE=index)
        return git("write-tree", GIT_INDEX_FILE=index)


def checkout(commit: str | None, home: Path) -> None:
    """Write the files of a commit into a folder, and the metadata that name its plugins."""
    archive = ["git", "archive", "--format=tar", tree(commit)]
    packed = subprocess.run(archive, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(home, filter="data")
    for _, settings in projects(home):
        project = settings["project"]
        info = home / METADATA / f"{project['name'].replace('-', '_')}-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n"
        )
        (info / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in points.items())
                for group, points in project["entry-points"].items()
            )
        )


def projects(home: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The packages of a checkout: their folders, and what pyproject.toml says."""
    for file in (home / each / "pyproject.toml" for each in PROJECTS):
        if file.exists():
            yield file.parent, tomllib.loads(file.read_text("utf-8"))


def paths(home: Path) -> list[str]:
    """Where Python finds the packages of a checkout, and their metadata."""
    folders = (
        folder / each
        for folder, settings in projects(home)
        for each in settings["tool"]["hatch"]["build"]["dev-mode-dirs"]
    )
    return [str(each) for each in (home / METADATA, *folders)]


def failure(name: str, steps: int, home: Path, run: Path) -> str | None:
    """Train an example of a checkout; why it cannot be run, in one line, or None.

    run: the folder that the run writes.
    """
    settings = (*EXAMPLES[name], f"train.steps={steps}", f"output={run}")
    file = f"examples/{FILES.get(name, f'{name}.yaml')}"
    train = ("-m", "groupwise", "train", file, *settings, "--quiet")
    for command in (SCRIPTS[name], train) if name in SCRIPTS else (train,):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=home,
            env={**os.environ, **VARIABLES, "PYTHONPATH": os.pathsep.join(paths(home))},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return None


# ---- comparing what they write

CHANGING = re.compile(r"(^|/)(time|reward_time|memory|seconds|\w+_seconds|\w+_per_second)(/|$)")
"""Names of values that are others in every run."""


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The names and values of nested JSON but for those that change; a value as it is written."""
    if isinstance(value, Mapping):
        for key, own in value.items():
            yield from flat(own, f"{name}/{key}" if name else key)
    elif not CHANGING.search(name):
        yield name, json.dumps(value, ensure_ascii=False)


def values_of_json(file: Path) -> dict[str, str]:
    return dict(flat(json.loads(file.read_text("utf-8"))))


def values_of_lines(file: Path) -> dict[str, str]:
    """Values of JSON Lines, named by the line and, where there is one, by the step."""
    named = {}
    for number, line in enumerate(file.read_text("utf-8").split("\n"), 1):
        row = json.loads(line or "{}")
        place = f"line {number}, step {row['step']}" if "step" in row else f"line {number}"
        named |= {f"{place}, {name}": own for name, own in flat(row)}
    return named


def values_of_tensors(file: Path) -> dict[str, str]:
    """The type, shape and digest of each tensor."""
    import torch
    from safetensors.torch import load_file

    named = {}
    for name, tensor in sorted(load_file(file).items()):
        content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        named[name] = f"{tensor.dtype} {[*tensor.shape]} {digest(content)}"
    return named


def values_of_bytes(file: Path) -> dict[str, str]:
    return {"bytes": digest(file.read_bytes())}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


READERS: Mapping[str, Callable[[Path], dict[str, str]]] = {
    ".json": values_of_json,
    ".jsonl": values_of_lines,
    ".safetensors": values_of_tensors,
}
"""By the ending of a file; others are compared by their bytes."""
COMPARED = ("metrics.jsonl", "result.json", "samples/**/*", "**/*.safetensors")
"""Files of a run; the others have times, paths, and digests of files with such in them."""


def values(run: Path) -> dict[str, dict[str, str]]:
    """What is compared of a run: by file, values by their names."""
    files = [file for each in COMPARED for file in sorted(run.glob(each)) if file.is_file()]
    return {
        file.relative_to(run).as_posix(): READERS.get(file.suffix, values_of_bytes)(file)
        for file in files
    }


Values = Mapping[str, Mapping[str, str]]


def differences(base: Values, head: Values) -> Iterator[str]:
    """What differs between the values of two runs, a line each."""
    for file in dict.fromkeys([*base, *head]):
        if file not in base or file not in head:
            yield f"{file}: only at {'BASE' if file in base else 'HEAD'}"
            continue
        before, after = base[file], head[file]
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                yield f"{file}, {name}: {change(before.get(name), after.get(name))}"


def change(before: str | None, after: str | None) -> str:
    """Two values, cut to where they begin to differ; None is one that is missing."""
    if before is None or after is None:
        return f"{(before or 'nothing')[:WIDTH]} -> {(after or 'nothing')[:WIDTH]}"
    pairs = enumerate(zip(before, after, strict=False))
    first = next((place for place, (x, y) in pairs if x != y), min(len(before), len(after)))
    part = slice(max(0, first - WIDTH // 2), first + WIDTH // 2)
    return f"{before[part]} -> {after[part]}"


def report(name: str, steps: int, homes: Mapping[str, Path]) -> tuple[str, list[str]]:
    """What came out for an example, and what differs or why it cannot be run, a line each.

    homes: the checkouts, as "BASE" and "HEAD".
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = {side: Path(folder) / side for side in homes}
        reasons = {side: failure(name, steps, homes[side], run) for side, run in runs.items()}
        if any(reasons.values()):
            return "cannot be run", [f"{side}: {why}" for side, why in reasons.items() if why]
        base, head = (values(run) for run in runs.values())
    lines = [*differences(base, head)]
    extent = f"{sum(map(len, base.values())):,} values in {len(base)} files"
    return f"{len(lines):,} differences in {extent}" if lines else f"equal, {extent}", lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base")
    parser.add_argument("head", nargs="?", help="by default the working tree")
    names = {"nargs": "+", "metavar": "NAME", "choices": EXAMPLES}
    parser.add_argument("--examples", **names, default=[*EXAMPLES])
    parser.add_argument("--allow", **names, default=[])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lines", type=int, default=6, help="differences printed, of each example")
    options = parser.parse_args()
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        homes = {side: Path(folder) / side for side in ("BASE", "HEAD")}
        for commit, home in zip((options.base, options.head), homes.values(), strict=True):
            checkout(commit, home)
        for name in options.examples:
            result, lines = report(name, options.steps, homes)
            more = [f"and {len(lines) - options.lines:,} more"] * (len(lines) > options.lines)
            print(f"{name}: {result}", *lines[: options.lines], *more, sep="\n    ", flush=True)
            wrong |= bool(lines) and name not in options.allow
    sys.exit(wrong)


if __name__ == "__main__":
    main()
