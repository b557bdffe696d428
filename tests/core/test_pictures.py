"""Policies whose completions are images: saved files, evaluations, reports."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import groupwise
from groupwise.kit.errors import UserError
from groupwise.run.evaluate import evaluate_run
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.samples import read_samples, write_samples
from groupwise.storage.saved import read_weights
from groupwise.storage.training_samples import TrainingSamples


class Picture:
    """An image, of which the core requires only `save`."""

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
            rollouts = super().sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)
            pictures = [Picture(text) for text in rollouts.completions]
            if purpose == "evaluate":
                no_decisions = rollouts.mask[:, :0]
                return replace(
                    rollouts,
                    completions=pictures,
                    mask=no_decisions,
                    sampler_log_probs=None,
                    trajectory={},
                )
            return replace(rollouts, completions=pictures)

    return Painter()


def ones(completions):
    return [float(picture.text.count("1")) for picture in completions]


@pytest.fixture
def image_run(lab, painter, tmp_path):
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


def test_images_are_saved_before_and_after(image_run):
    names = [f"{draw:04d}_{index}.png" for draw in range(4) for index in range(2)]
    folders = image_run.folder.rglob("*.png")
    assert {path.parent.name for path in folders} == {"before", "after", "training"}
    for side in ("before", "after"):
        assert sorted(p.name for p in (image_run.folder / "samples" / side).iterdir()) == names
        samples = read_samples(image_run.folder / "samples" / f"{side}.jsonl")
        assert [s["image"] for s in samples] == [f"samples/{side}/{name}" for name in names]
        assert {s["completion"] for s in samples} == {""}
        for sample in samples:
            content = (image_run.folder / sample["image"]).read_bytes()
            assert content.count(b"1") == sample["rewards"]["ones"]
    page = (image_run.folder / "report.html").read_text()
    # The first of two samples of each prompt, and completions of training in the table.
    assert page.count("<img") == 16


def test_evaluations_of_images_have_no_greedy_pass_and_no_lengths(image_run):
    for metrics in (image_run.before, image_run.after):
        assert "greedy_accuracy" not in metrics
        assert "length" not in metrics
    assert not any(s["greedy"] for s in read_samples(image_run.folder / "samples" / "after.jsonl"))
    page = (image_run.folder / "report.html").read_text()
    words = page.partition("<body>")[2].partition("<details>")[0].lower()
    assert "greedy" not in words
    assert "length, " not in words


def test_an_error_names_a_picture_and_no_address_in_memory(lab, painter, tmp_path):
    def broken(completions):
        raise ValueError("no colours")

    with pytest.raises(UserError, match=r"no colours(.|\n)*completion: \[picture\]\n"):
        groupwise.train(
            policy=painter,
            prompts=lab.rows(),
            rewards=[broken],
            train={"steps": 1, "groups_per_step": 2, "group_size": 4},
            output=tmp_path / "run",
            quiet=True,
        )


def test_evaluations_count_distinct_prompts(image_run, lab):
    assert image_run.after["prompts"] == 4
    assert image_run.after["distinct_prompts"] == 3
    metrics = lab.trainer(evaluation={"prompts": 2}).evaluate().metrics
    assert "distinct_prompts" not in metrics
    assert metrics["length"] > 0


def test_rewritten_samples_replace_the_images_of_earlier_ones(tmp_path):
    def sample(draw, *, greedy=False):
        return {"completion": Picture(str(draw)), "draw": draw, "index": 0, "greedy": greedy}

    path = tmp_path / "run" / "samples" / "after.jsonl"
    path.parents[1].mkdir()
    write_samples(path, [sample(0), sample(1)])
    write_samples(path, [sample(0), sample(0, greedy=True)])
    names = sorted(p.name for p in path.with_suffix("").iterdir())
    assert names == ["0000_0.png", "0000_0_greedy.png"]
    assert [row["image"] for row in read_samples(path)] == [f"samples/after/{n}" for n in names]
    assert read_samples(path.with_name("none.jsonl")) == []


@pytest.mark.parametrize("name", ["after", "training"])
def test_images_of_one_episode_have_files_of_their_own(tmp_path, name):
    pictures = [Picture(f"{number}") for number in range(3)]
    samples = [
        {"prompt": "a", "completion": each, "draw": 0, "index": 0, "greedy": False, "total": 0.0}
        for each in pictures
    ]
    path = tmp_path / "samples" / f"{name}.jsonl"
    if name == "training":
        TrainingSamples(path, 4).write(1, samples)
    else:
        write_samples(path, samples)
    files = [tmp_path / sample["image"] for sample in read_samples(path)]
    assert [file.read_bytes()[-1:] for file in files] == [b"0", b"1", b"2"]


def test_evaluations_and_the_saved_model_use_averaged_weights(lab, tmp_path):
    tables = []

    class Recording(lab.Tabular):
        def sample(self, *args, purpose="train", **options):
            if purpose == "evaluate":
                tables.append(self.table.detach().clone())
            return super().sample(*args, purpose=purpose, **options)

        def save_pretrained(self, path):
            tables.append(self.table.detach().clone())

    result = groupwise.train(
        policy=Recording(),
        prompts={"name": "rows", "rows": lab.rows()},
        rewards=[lab.ones],
        train={"steps": 2, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.1, "ema": 0.9},
        evaluation={"prompts": 2, "source": {"name": "rows", "rows": lab.rows()}, "greedy": False},
        output=tmp_path / "run",
        quiet=True,
    )
    first, saved, after = tables
    in_hand = result.policy.table.detach().clone()
    assert torch.equal(saved, after)
    assert torch.equal(saved, in_hand)
    assert not torch.equal(saved, first)
    resumed = lab.Tabular()
    read_weights(resumed, Checkpoints(tmp_path / "run" / "checkpoints").load())
    assert not torch.equal(resumed.table, saved)  # it goes on from the weights that are trained
    # A later evaluation of the run uses them, too.
    objects = {("policy",): Recording(), ("rewards", 0): lab.ones}
    evaluation = evaluate_run(tmp_path / "run", objects=objects)
    assert evaluation.metrics == pytest.approx(dict(result.after))
    assert torch.equal(tables[-1], saved)


def test_the_record_of_a_run_names_its_unit(image_run):
    assert json.loads((image_run.folder / "result.json").read_text())["unit"] == "steps"


def test_a_later_evaluation_writes_its_own_images_and_report(image_run, painter):
    rows = [{"prompt": f"other {n}", "id": n, "asks": n} for n in range(3)]
    before = {path: path.read_bytes() for path in image_run.folder.rglob("*") if path.is_file()}
    objects = {("policy",): painter, ("prompts",): rows, ("rewards", 0): ones}
    source = {"name": "rows", "rows": rows}
    overrides = [f"evaluation.source={json.dumps(source)}", "evaluation.prompts=3"]
    folder = evaluate_run(image_run.folder, overrides, objects=objects).folder
    samples = read_samples(folder / "samples" / "evaluation.jsonl")
    assert [sample["image"] for sample in samples] == [
        f"samples/evaluation/{draw:04d}_{index}.png" for draw in range(3) for index in range(2)
    ]
    assert all((folder / sample["image"]).is_file() for sample in samples)
    assert (folder / "report.html").read_text().count("<img") == 3
    assert {path: path.read_bytes() for path in before} == before
