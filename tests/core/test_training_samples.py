"""Completions of training steps: which are kept, what is said of them, how many, after a resume."""

import json
import math

import pytest

import groupwise
from groupwise import Callback
from groupwise.storage.training_samples import TrainingSamples, is_kept
from groupwise_algorithms.dr_grpo import DrGRPO

COUNTS = {"groups_per_step": 3, "group_size": 4}


def train(lab, folder, steps, *, samples, **options):
    return groupwise.train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[lab.ones],
        evaluation={"prompts": 1},
        output=folder,
        train={"steps": steps, "learning_rate": 0.5, "samples": samples, **COUNTS},
        quiet=True,
        **options,
    )


def lines_of(folder):
    path = folder / "samples" / "training.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


class Everything(Callback):
    """Scores of all completions of all steps, as the reward saw them."""

    def __init__(self):
        self.seen, self.sent = [], []

    def reward(self, completions, purpose, **columns):
        values = [text.count("1") - 0.25 * len(text) for text in completions]
        if purpose == "train":
            self.seen.append([*zip(completions, values, strict=True)])
        return values

    def on_samples(self, step, samples):
        self.sent += [{"step": step, **sample} for sample in samples]


def test_the_extremes_of_a_step_are_kept_with_their_advantages(lab, tmp_path):
    everything = Everything()
    groupwise.train(
        policy=lab.Tabular(),
        algorithm=DrGRPO(),  # an advantage is the reward minus the mean of its group
        prompts=lab.rows(),
        rewards=[{"name": everything.reward, "label": "ones", "weight": 2.0}],
        callbacks=[everything],
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        train={"steps": 3, "learning_rate": 0.5, **COUNTS},
        quiet=True,
    )
    lines = lines_of(tmp_path / "run")
    assert lines == json.loads(json.dumps(everything.sent))
    for step, completions in enumerate(everything.seen, start=1):
        own = [line for line in lines if line["step"] == step]
        by_word = {word: line for line in own for word in line["chosen"]}
        totals = [2 * value for _, value in completions]
        assert by_word["best"]["total"] == max(totals)
        assert by_word["worst"]["total"] == min(totals)
        assert by_word["longest"]["length"] == max(len(text) for text, _ in completions)
        assert by_word["first"]["completion"] == completions[0][0]
        assert len(own) == 4
        for line in own:
            at = line["draw"] - 3 * (step - 1)
            group = totals[4 * at : 4 * at + 4]
            assert line["completion"] == completions[4 * at + line["index"]][0]
            assert line["rewards"] == {"ones": line["total"] / 2}
            mean = sum(group) / 4
            assert line["advantage"] == pytest.approx(line["total"] - mean, abs=1e-6)
            std = math.sqrt(sum((value - mean) ** 2 for value in group) / 3)
            assert line["group"] == pytest.approx({"mean": mean, "std": std})


def test_a_failed_completion_is_kept_and_has_no_advantage(lab, tmp_path):
    def fails(completions, **columns):
        return [math.nan if text.startswith("2") else float(len(text)) for text in completions]

    groupwise.train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[{"name": fails, "on_error": "skip"}],
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        train={"steps": 1, **COUNTS},
        quiet=True,
    )
    (failed,) = [line for line in lines_of(tmp_path / "run") if "failed" in line["chosen"]]
    assert failed["completion"].startswith("2")
    assert (failed["advantage"], failed["total"]) == (None, None)
    assert "reward 'fails'" in failed["failed"]


def test_a_resumed_run_has_the_same_file_also_where_older_steps_were_dropped(lab, tmp_path):
    few = {"steps": 4, "per_step": 2}
    train(lab, tmp_path / "through", 11, samples=few)
    train(lab, tmp_path / "killed", 7, samples=few)
    train(lab, tmp_path / "later", 9, samples=few)
    # As if the run had been killed in step 10, and its last checkpoint were that of step 7.
    one, other = (tmp_path / name / "samples/training.jsonl" for name in ("killed", "later"))
    one.write_text(other.read_text() + '{"step": 10, "prompt": "quest')
    train(lab, tmp_path / "killed", 11, samples=few, resume=True)
    assert one.read_bytes() == (tmp_path / "through/samples/training.jsonl").read_bytes()
    assert [line["step"] for line in lines_of(tmp_path / "killed")] == [4, 4, 8, 8]
    assert not [step for step in range(1, 5) if not is_kept(step, 4)]
    assert [step for step in range(5, 20) if is_kept(step, 4)] == [6, 8, 12, 16]


def test_a_line_and_its_images_are_bounded(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "samples").mkdir()
    file = TrainingSamples(tmp_path / "samples" / "training.jsonl", 2)
    said = [{"role": "user", "content": "a" * 50_000}] * 9
    place = {"draw": 0, "index": 0, "greedy": False}
    for step in (1, 2):
        small, large = image.new("RGB", (8, 8), "red"), image.new("RGB", (600, 300), "blue")
        samples = [
            {"prompt": said, "completion": small, **place},
            {"prompt": "p", "completion": large, **place, "index": 1},
        ]
        file.write(step, samples)
    lines = file.path.read_text().splitlines()
    assert max(map(len, lines)) <= 32_000
    assert "characters left out" in lines[0]
    names = [json.loads(line)["image"] for line in lines]
    assert names[:2] == ["samples/training/1_0_0.png", "samples/training/1_0_1.jpg"]
    with image.open(tmp_path / names[1]) as stored:
        assert stored.size == (600, 300)
    file.write(3, [])  # those of step 1 are dropped
    assert sorted(path.name for path in file.folder.iterdir()) == ["2_0_0.png", "2_0_1.jpg"]
