"""Policies whose completions are images: what an evaluation keeps of them, and what it skips."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import groupwise
from groupwise.run.display import brief
from groupwise.run.evaluate import evaluate_run
from groupwise.storage.checkpoint import Checkpoints, read_weights
from groupwise.storage.samples import read_samples, write_samples


class Picture:
    """What the core asks of an image: that it can be saved."""

    def __init__(self, text):
        self.text = text

    def save(self, path):
        Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + self.text.encode())


@pytest.fixture
def painter(lab):
    """A policy without a greedy mode, whose evaluation has no decisions."""

    class Painter(lab.Tabular):
        greedy = False
        unit = "steps"

        def sample(self, prompts, *, group_size, seeds, purpose="train"):
            assert purpose != "greedy"
            made = super().sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)
            pictures = [Picture(text) for text in made.completions]
            if purpose == "evaluate":
                nothing = made.mask[:, :0]
                return replace(
                    made, completions=pictures, mask=nothing, sampler_log_probs=None, trajectory={}
                )
            return replace(made, completions=pictures)

    return Painter()


def ones(completions):
    return [float(picture.text.count("1")) for picture in completions]


@pytest.fixture
def painted(lab, painter, tmp_path):
    evaluation = {"prompts": 4, "samples": 2, "every": 1, "distinct": False}
    rows = [{**row, "asks": row["id"] % 3} for row in lab.rows()]
    return groupwise.train(
        policy=painter,
        prompts=rows,
        rewards=[ones],
        train={"steps": 2, "groups_per_step": 2, "group_size": 4},
        evaluation={**evaluation, "source": {"name": "rows", "rows": rows}},
        output=tmp_path / "run",
        quiet=True,
        **{"prompts.key": "asks"},
    )


def test_images_are_saved_before_and_after(painted):
    names = [f"{draw:04d}_{index}.png" for draw in range(4) for index in range(2)]
    folders = painted.folder.rglob("*.png")
    assert {path.parent.name for path in folders} == {"before", "after"}
    for side in ("before", "after"):
        assert sorted(p.name for p in (painted.folder / "samples" / side).iterdir()) == names
        samples = read_samples(painted.folder / "samples" / f"{side}.jsonl")
        assert [s["image"] for s in samples] == [f"samples/{side}/{name}" for name in names]
        assert {s["completion"] for s in samples} == {""}
        for sample in samples:
            content = (painted.folder / sample["image"]).read_bytes()
            assert content.count(b"1") == sample["rewards"]["ones"]
    page = (painted.folder / "report.html").read_text()
    assert page.count("<img") == 8  # of two samples for a prompt the first


def test_no_greedy_pass_and_no_lengths(painted):
    for metrics in (painted.before, painted.after):
        assert "greedy_accuracy" not in metrics
        assert "length" not in metrics
    assert not any(s["greedy"] for s in read_samples(painted.folder / "samples" / "after.jsonl"))
    assert "length" not in brief(painted.after)
    page = (painted.folder / "report.html").read_text()
    words = page.partition("<body>")[2].partition("<details>")[0].lower()
    assert "greedy" not in words
    assert "length, " not in words


def test_repeated_questions_are_counted(painted, lab):
    assert painted.after["prompts"] == 4
    assert painted.after["distinct_prompts"] == 3
    assert brief(painted.after).endswith("(4 held-out prompts, 3 different)")
    metrics = lab.trainer(evaluation={"prompts": 2}).evaluate().metrics
    assert "distinct_prompts" not in metrics
    assert metrics["length"] > 0


def test_images_of_an_evaluation_that_is_written_anew(tmp_path):
    def sample(draw, *, greedy=False):
        return {"completion": Picture(str(draw)), "draw": draw, "index": 0, "greedy": greedy}

    path = tmp_path / "run" / "samples" / "after.jsonl"
    write_samples(path, [sample(0), sample(1)])
    write_samples(path, [sample(0), sample(0, greedy=True)])
    names = sorted(p.name for p in path.with_suffix("").iterdir())
    assert names == ["0000_0.png", "0000_0_greedy.png"]
    assert [row["image"] for row in read_samples(path)] == [f"samples/after/{n}" for n in names]
    assert read_samples(path.with_name("none.jsonl")) == []


def test_evaluations_and_what_is_saved_have_the_averaged_weights(lab, tmp_path):
    seen = []

    class Recording(lab.Tabular):
        def sample(self, *rest, purpose="train", **more):
            if purpose == "evaluate":
                seen.append(self.table.detach().clone())
            return super().sample(*rest, purpose=purpose, **more)

        def save_pretrained(self, path):
            seen.append(self.table.detach().clone())

    result = groupwise.train(
        policy=Recording(),
        prompts={"name": "rows", "rows": lab.rows()},
        rewards=[lab.ones],
        train={"steps": 2, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.1, "ema": 0.9},
        evaluation={"prompts": 2, "source": {"name": "rows", "rows": lab.rows()}, "greedy": False},
        output=tmp_path / "run",
        quiet=True,
    )
    first, saved, after = seen
    raw = result.policy.table.detach().clone()
    assert torch.equal(saved, after)
    assert not torch.equal(saved, raw)
    assert not torch.equal(saved, first)
    resumed = lab.Tabular()
    read_weights(resumed, Checkpoints(tmp_path / "run" / "checkpoints").load())
    assert torch.equal(resumed.table, raw)
    # And so has an evaluation made later.
    objects = {("policy",): Recording(), ("rewards", 0): lab.ones}
    again = evaluate_run(tmp_path / "run", objects=objects)
    assert again.metrics == pytest.approx(dict(result.after))
    assert torch.equal(seen[-1], saved)


def test_the_record_of_a_run_names_its_unit(painted):
    assert json.loads((painted.folder / "result.json").read_text())["unit"] == "steps"


def test_pictures_of_an_evaluation_have_a_folder_and_a_page(painted, painter):
    rows = [{"prompt": f"other {n}", "id": n, "asks": n} for n in range(3)]
    before = {path: path.read_bytes() for path in painted.folder.rglob("*") if path.is_file()}
    objects = {("policy",): painter, ("prompts",): rows, ("rewards", 0): ones}
    new = {"name": "rows", "rows": rows}
    overrides = [f"evaluation.source={json.dumps(new)}", "evaluation.prompts=3"]
    folder = evaluate_run(painted.folder, overrides, objects=objects).folder
    samples = read_samples(folder / "samples" / "evaluation.jsonl")
    assert [sample["image"] for sample in samples] == [
        f"samples/evaluation/{draw:04d}_{index}.png" for draw in range(3) for index in range(2)
    ]
    assert all((folder / sample["image"]).is_file() for sample in samples)
    assert (folder / "report.html").read_text().count("<img") == 3
    assert {path: path.read_bytes() for path in before} == before
