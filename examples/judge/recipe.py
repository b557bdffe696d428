"""UnifiedReward-Think in small: a judge of pairs of pictures in three stages, then a painter that
learns from its judgements.

    python examples/judge/recipe.py --out runs/judge
    python examples/judge/recipe.py --out runs/judge --seeds 0 1 2

Every stage is a command of its own, and is left out if its output is there: started again, the
recipe goes on where it stopped. The results are table.md, and the page of each run.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations, groupby
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "shapes")]

from judge.judgements import ANSWERS, CAPTIONS, question  # noqa: E402

GROUPWISE = (sys.executable, "-m", "groupwise")
SPLITS = ("train", "held-out")
DRAWN, COMPARED = 12, 8
"""Pictures of a caption, and at most so many pairs of them."""
STAGES = {
    "base": ("base_run", "before"),
    "1. cold start": ("cold_run", "before"),
    "2. rejection sampling": ("grpo", "before"),
    "3. GRPO": ("grpo", "after"),
}
"""By stage, the run that evaluated the judge then, and which of its evaluations."""
WHEN = ("before", "after")
PAINTER = {
    "scenes right": "watch/image_contents",
    "diversity": "watch/image_diversity",
    "win rate": "reward",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/judge"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options, overrides = parser.parse_known_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    write(out / "captions.jsonl", CAPTIONS)
    draw_pairs(out)
    for seed in options.seeds:
        judge(out, seed)
        train_painter(out, seed, overrides)
    text = table(out, options.seeds)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)


def draw_pairs(out: Path) -> None:
    """train_pairs.jsonl, held-out_pairs.jsonl: two pictures of the painter for the same caption, of
    which one is right by the verifier. In the paper people say which is better."""
    run, captions = out / "pictures", f"prompts.path={out / 'captions.jsonl'}"
    shapes = HERE.parent / "shapes.yaml"
    quick = ("policy.evaluation_steps=10", "evaluation.prompts=2", "evaluation.samples=1")
    train(run, shapes, captions, "train.steps=0", *quick)
    chance = random.Random(0)
    for split in SPLITS:
        made = out / f"{split}.jsonl"
        sample(run, made, "--per-prompt", str(DRAWN), "--keep", "all", "--split", split)
        by_caption = groupby(read(made), key=lambda row: row["prompt"])
        rows = [row for _, drawn in by_caption for row in pairs([*drawn], chance)]
        numbered = [{**row, "pair": place} for place, row in enumerate(rows)]
        write(out / f"{split}_pairs.jsonl", numbered)


def pairs(drawn: Sequence[Mapping[str, Any]], chance: random.Random) -> list[Mapping[str, Any]]:
    """Some pairs of pictures of one caption, each of a right and a wrong one."""
    unequal = [two for two in combinations(drawn, 2) if two[0]["right"] != two[1]["right"]]
    rows: list[Mapping[str, Any]] = []
    for two in chance.sample(unequal, min(COMPARED, len(unequal))):
        first, second = chance.sample(two, 2)
        rows.append(
            {
                "prompt": [{"role": "user", "content": question(first["prompt"])}],
                "images": [first["file_name"], second["file_name"]],
                "answer": ANSWERS[second["right"]],
                "caption": first["prompt"],
            }
        )
    return rows


def swapped(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pair in the other order. Most pairs that a judge gets wrong are of one order, if it
    prefers a place; GRPO on these alone teaches it to prefer the other place."""
    (other,) = {*ANSWERS} - {row["answer"]}
    return {**row, "images": row["images"][::-1], "answer": other}


def judge(out: Path, seed: int) -> None:
    """The three stages, from the base."""
    folder, file = out / f"seed{seed}", HERE / "judge.yaml"
    every, held_out = out / "train_pairs.jsonl", out / "held-out_pairs.jsonl"
    cold, more = folder / "cold", folder / "more"
    sampled, hard = out / f"sampled_seed{seed}.jsonl", out / f"hard_seed{seed}.jsonl"

    def grpo(name: str, model: Path, pairs: Path, *settings: str) -> None:
        paths = (f"policy.model={model}", f"prompts.path={pairs}", f"seed={seed}")
        train(folder / name, file, *paths, f"evaluation.source.path={held_out}", *settings)

    grpo("base_run", HERE / "base", every, "train.steps=0")
    supervised(cold, HERE / "base", seed)
    grpo("cold_run", cold, every, "train.steps=0")
    sample(folder / "cold_run", sampled, "--per-prompt", "1", "--keep", "all")
    supervised(more, cold, seed, "--data", sampled, "--steps", "100", "--rate", "1e-3")
    right = {row["pair"] for row in read(sampled) if row["right"]}
    wrong = [row for row in read(every) if row["pair"] not in right]
    write(hard, [own for row in wrong for own in (row, swapped(row))])
    grpo("grpo", more, hard)


def train_painter(out: Path, seed: int, overrides: Sequence[str]) -> None:
    folder = out / f"seed{seed}"
    trained = (f"rewards.0.model={folder / 'grpo' / 'model'}", f"seed={seed}")
    captions = f"prompts.path={out / 'captions.jsonl'}"
    train(folder / "painter", HERE / "painter.yaml", captions, *trained, *overrides)


def train(run: Path, file: Path, *settings: str) -> None:
    """A run of `groupwise train`, unless it is complete."""
    result = run / "result.json"
    if not result.exists() or json.loads(result.read_text(encoding="utf-8"))["interrupted"]:
        command(run, *GROUPWISE, "train", file, "--auto-resume", f"output={run}", *settings)


def sample(run: Path, target: Path, *options: str) -> None:
    if not target.exists():
        partly = target.with_name(f"part_{target.name}")
        command(target, *GROUPWISE, "sample", run, *options, "--output", partly, "--overwrite")
        partly.rename(target)


def supervised(target: Path, model: Path, seed: int, *options: str | Path) -> None:
    if not (target / "processor_config.json").exists():
        paths = ("--model", model, "--output", target, "--seed", str(seed))
        command(target, sys.executable, HERE / "sft.py", *paths, *options)


def command(target: Path, *words: str | Path) -> None:
    """Run a command on one thread, with its output in a log beside what it makes."""
    print(target, flush=True)
    log = target.parent / "logs" / f"{target.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        one = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        failed = subprocess.run(
            [*map(str, words)], stdout=file, stderr=subprocess.STDOUT, env=one, check=False
        ).returncode
    if failed:
        raise SystemExit(f"{target} failed; what it said is in {log}")


def table(out: Path, seeds: Sequence[int]) -> str:
    """The judge after each stage, and the painter before and after, as Markdown: a value for each
    seed."""
    lines = ["| the judge after | sampled | greedy | Image 1 is right | Image 2 is right |"]
    lines.append("|---|---|---|---|---|")
    for stage, (run, when) in STAGES.items():
        shares = zip(*(accuracies(out, seed, run, when) for seed in seeds), strict=True)
        cells = [", ".join(f"{share:.3f}" for share in column) for column in shares]
        lines.append(f"| {stage} | {' | '.join(cells)} |")
    lines += ["", "| the painter | before | after |", "|---|---|---|"]
    painters = [result(out, seed, "painter") for seed in seeds]
    for name, key in PAINTER.items():
        cells = [", ".join(f"{own[when][key]:.3f}" for own in painters) for when in WHEN]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    alarms = [" ".join(alarms_of(out / f"seed{seed}" / "painter")) or "none" for seed in seeds]
    lines.append(f"| alarms | | {', '.join(alarms)} |")
    return "\n".join([*lines, ""])


def accuracies(out: Path, seed: int, run: str, when: str) -> list[float]:
    """The judge's accuracy: of sampled judgements, of greedy ones, and of those by which picture is
    right."""
    pairs = read(out / "held-out_pairs.jsonl")
    samples = read(out / f"seed{seed}" / run / "samples" / f"{when}.jsonl")
    sampled = [own for own in samples if not own["greedy"]]
    greedy = [own for own in samples if own["greedy"]]
    parts = [[own for own in greedy if pairs[own["draw"]]["answer"] == which] for which in ANSWERS]
    return [mean(own["right"] for own in part) for part in (sampled, greedy, *parts)]


def alarms_of(run: Path) -> list[str]:
    """The watched rewards that raised an alarm at any evaluation."""
    names = (name for row in read(run / "metrics.jsonl") for name, value in row.items() if value)
    return sorted({name.removeprefix("alarm/") for name in names if name.startswith("alarm/")})


def result(out: Path, seed: int, run: str) -> Mapping[str, Any]:
    own: dict[str, Any] = json.loads((out / f"seed{seed}" / run / "result.json").read_text("utf-8"))
    return own


def read(path: Path) -> list[dict[str, Any]]:
    return [*map(json.loads, path.read_text(encoding="utf-8").splitlines())]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if not path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
