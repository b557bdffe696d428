"""Accuracy of a run of `examples/shapes.yaml` by kind of scene, before and after training.

    python examples/shapes/by_scene.py runs/shapes

"a red disk left of a blue square" and "a blue square right of a red disk" are one scene. A new
scene does not occur in the training set, not even in other words.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import scenes  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


def main() -> None:
    folder = Path(sys.argv[1])
    before, after = (by_kind(folder / "samples" / f"{name}.jsonl") for name in ("before", "after"))
    print("scene                       pictures  before  after")
    for kind, values in sorted(after.items()):
        shares = [sum(part) / len(part) for part in (before[kind], values)]
        print(f"{kind:<26}  {len(values):>8}  {shares[0]:>6.3f}  {shares[1]:>5.3f}")


def by_kind(path: Path) -> dict[str, list[float]]:
    """For each kind of scene, whether each picture in a file of samples is right."""
    right = defaultdict(list)
    kinds = {row["prompt"]: kind(row) for row in scenes.rows()}
    for line in path.read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        right[kinds[sample["prompt"]]].append(sample["right"])
    return right


def kind(row: scenes.Row) -> str:
    if row["tag"] != "position":
        return {"single_object": "one object", "counting": "two of a kind"}[row["tag"]]
    words = "in other words" if other_words(row) in TRAINED else "new"
    return f"two objects, {words}"


def other_words(row: scenes.Row) -> str:
    """The other prompt for the same scene of two objects."""
    first, second = row["include"]
    relation = OPPOSITE[first["position"][0]]
    return f"a {second['color']} {second['class']} {relation} a {first['color']} {first['class']}"


TRAINED = {row["prompt"] for row in scenes.rows() if not held_out(row["prompt"], HELD_OUT)}

if __name__ == "__main__":
    main()
