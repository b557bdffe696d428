"""The examples that look at pictures: their questions, their shipped models, two training steps."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from groupwise.config.load import load_config
from groupwise.run.train import train_from_config
from groupwise_verifiable.images.pixels import pixels
from groupwise_verifiable.images.shapes import find_shapes

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def imports_from_examples(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


def samples_of(folder, name="before"):
    lines = (folder / "samples" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def seen(picture):
    """The objects in a picture, as the verifier sees them."""
    (own,) = pixels([picture], reward="test")
    return Counter(f"{each.color} {each.label}" for each in find_shapes(own))


def test_questions_are_answered_by_what_is_in_the_picture():
    from count_shapes.questions import Questions

    rows = [*Questions(40)]
    kinds = Counter()
    for row in rows:
        objects = seen(row["image"])
        assert objects == Counter(row["scene"].split(", "))
        what, which, *rest = row["prompt"][0]["content"].rstrip("?").split()
        if which == "many":
            right = str(objects[" ".join(rest).removesuffix("s")])
        elif which == "colour":
            (right,) = {name.split()[0] for name in objects if name.endswith(rest[-1])}
        else:
            (right,) = {name.split()[1] for name in objects if name.startswith(rest[-2])}
        assert row["answer"] == right
        kinds[what, which] += 1
    assert set(kinds) == {("How", "many"), ("What", "colour"), ("What", "shape")}


def test_a_question_is_the_same_whenever_it_is_read():
    from count_shapes.questions import Questions

    first, again, other = Questions(3)[1], Questions(3)[1], Questions(3, seed=1)[1]
    assert {**first, "image": 0} == {**again, "image": 0}
    assert np.array_equal(first["image"], again["image"])
    assert not np.array_equal(first["image"], other["image"])


def test_thoughts_count_what_is_asked_for():
    from count_shapes.questions import thought

    things = [("red", "disk"), ("blue", "square"), ("red", "disk")]
    assert thought(things, "How many red disks?") == "red disk 1, blue square, red disk 2"
    assert thought(things, "What colour is the square?") == "red disk, blue square, red disk"


@pytest.mark.slow
def test_two_steps_of_looking(tmp_path):
    overrides = ["prompts.size=300", "train.groups_per_step=2", "train.steps=2"]
    overrides += ["evaluation.prompts=12", "evaluation.every=0", f"output={tmp_path / 'run'}"]
    loaded = load_config(EXAMPLES / "count_shapes.yaml", overrides)
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    assert 0 < result.before["accuracy"] <= 0.5
    samples = samples_of(tmp_path / "run")
    looked = [sample for sample in samples if "<think>" in sample["completion"][0]["content"]]
    assert 0 < len(looked) < len(samples)
    share = [sum(own["right"] for own in part) / len(part) for part in (looked, samples)]
    assert share[0] > share[1]  # who looks is right more often
