"""Time and memory of a step of a vision-language model: TRL's GRPOTrainer and ours.

    python tests/benchmarks/vision_trl.py --rounds 2 --steps 4      # needs `pip install trl`
    python tests/benchmarks/vision_trl.py shapes --towers frozen    # one row of the table

The same Qwen2.5-VL, pictures and questions (the columns `prompt` and `image`), reward and settings,
in float32 on the CPU; processor seconds. Sides run in turns, round by round, each in a separate
process, whose first step does not count. TRL trains the vision tower, ours is frozen by default;
for `--towers frozen` TRL's is frozen here, and for `trained` ours is trained.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sides import Side, in_turns, machine, ours, run_side, trl
from works import Work

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
TOWER = "model.visual"
"""The module of the vision tower in a Qwen2.5-VL."""


@dataclass(frozen=True, kw_only=True)
class VisionWork(Work):
    """Questions of `examples/count_shapes`. pixels: side of a picture as the model sees it; depth:
    blocks of the tower, as wide as the language model. A depth of 0 means the example's model."""

    pixels: int = 32
    depth: int = 0

    def examples(self, count: int) -> list[dict[str, Any]]:
        from count_shapes.questions import Questions

        return [{key: row[key] for key in ("prompt", "image")} for row in Questions(count)]


WORKS = {
    "shapes": VisionWork(completion=32, rows=128),
    "larger": VisionWork(completion=64, hidden=256, layers=6, depth=6, pixels=192),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], help="all if none")
    parser.add_argument("--towers", nargs="+", choices=TOWERS, default=list(TOWERS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    parser.add_argument("--models", type=Path, help="where the models are, made there if missing")
    options = parser.parse_args()
    options.device = "cpu"
    folder = options.models or Path(tempfile.mkdtemp())
    works = options.works or list(WORKS)
    paths = {name: saved_model(name, folder) for name in works}
    if options.side:
        ((name, path),) = paths.items()
        (tower,) = options.towers
        side = TOWERS[tower][options.side]
        print(json.dumps(run_side(side, WORKS[name], path, options.steps, time.process_time)))
        return
    print(machine(options))
    print("\n| model | tower | TRL | Groupwise | ratio | tokens a step | peak GB |")
    print("|---|---|---|---|---|---|---|")
    for name in works:
        for tower in options.towers:
            settings = [name, "--towers", tower, "--models", str(folder)]
            settings += ["--steps", str(options.steps)]
            measured = in_turns(
                __file__, list(SIDES), settings, rounds=options.rounds, threads=options.threads
            )
            print(row(name, tower, measured), flush=True)


def row(name: str, tower: str, measured: dict[str, dict[str, Any]]) -> str:
    """A line of the table: medians of seconds, means of tokens, both as `TRL, ours` in one cell."""
    theirs, own = (statistics.median(values["seconds"]) for values in measured.values())
    rows = WORKS[name].rows
    tokens = [f"{rows * statistics.mean(values['lengths']):,.0f}" for values in measured.values()]
    peaks = [f"{values['peak']:.2f}" for values in measured.values()]
    times = f"{theirs:.2f} s | {own:.2f} s | {theirs / own:.2f}"
    return f"| {name} | {tower} | {times} | {' and '.join(tokens)} | {' and '.join(peaks)} |"


def saved_model(name: str, folder: Path) -> Path:
    """The folder of a model, which is made there if it is not yet."""
    work, path = WORKS[name], folder / name
    if not work.depth:
        return EXAMPLES / "count_shapes" / "base"
    if not path.exists():
        make(work, path)
    return path


def make(work: VisionWork, path: Path) -> None:
    """Saves a random Qwen2.5-VL and its processor. Most tokens stand for nothing, so that the end
    is rarely drawn."""
    import torch
    from count_shapes.make_base import WORDS
    from small_qwen2_5_vl import make_model, make_processor

    torch.manual_seed(0)
    processor = make_processor(WORDS)
    tokens = processor.tokenizer
    tokens.add_tokens([f"<w{number}>" for number in range(len(tokens), work.vocabulary)])
    area = work.pixels**2
    processor.image_processor.size = {"shortest_edge": area, "longest_edge": area}
    model = make_model(
        processor, width=work.hidden, layers=work.layers, depth=work.depth, spread=0.02
    )
    processor.save_pretrained(path)
    model.save_pretrained(path)


our = partial(ours, name="vision_language_model")
TOWERS: dict[str, dict[str, Side]] = {
    "frozen": {"TRL": partial(trl, frozen=TOWER), "Groupwise": our},
    "trained": {"TRL": trl, "Groupwise": partial(our, vision="trained")},
}
"""By what is done with the vision tower, the sides."""
SIDES = TOWERS["frozen"].keys()

if __name__ == "__main__":
    main()
