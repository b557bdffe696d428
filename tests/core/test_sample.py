"""`groupwise sample`: what is drawn, what of it is kept, and what is in the file after a kill."""

import itertools
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import groupwise
from groupwise.cli import app
from groupwise.errors import UserError
from groupwise.run import sample as sampling
from groupwise.run.reopening import reopened
from groupwise.run.sample import answers, sample_run
from groupwise.run.selection import Selection
from groupwise.storage.sampled import SampledSet


def even(completions, **_):
    """Right where there is an even number of 1s."""
    return [float(text.count("1") % 2 == 0) for text in completions]


@pytest.fixture
def run(lab, tmp_path):
    """run(reward, **sections) -> sample(**selection) of a short run of a tabular policy."""

    def make(reward=even, policy=lab.Tabular, **sections):
        groupwise.train(
            **{
                "policy": policy(),
                "prompts": {"name": "rows", "rows": lab.rows(), "held_out": 0.4},
                "rewards": [reward],
                "train": {"steps": 2, "groups_per_step": 2, "group_size": 4},
                "evaluation": {"prompts": 1},
                "output": tmp_path / "run",
                "quiet": True,
                **sections,
            }
        )

        def sample(*overrides, **selection):
            # Weights that are nothing like those of the checkpoint, which is to be read.
            objects = {("policy",): policy(seed=1), ("rewards", 0): reward}
            if not isinstance(sections.get("prompts", {}), dict):
                objects["prompts",] = sections["prompts"]
            return sample_run(tmp_path / "run", Selection(**selection), overrides, objects=objects)

        return sample

    return make


NONE = {"prompts": 0}
ONE = ["train.sample_batch=2"]


def samples(*facts):
    """Completions of a prompt of (completion, reward, right, length) each."""
    names = ("completion", "total", "right", "length")
    return [
        {**dict(zip(names, one, strict=True)), "index": n, "truncated": False}
        for n, one in enumerate(facts)
    ]


def test_every_prompt_of_a_split_once_and_all_its_completions(run, lab):
    sample = run()
    train = sample(per_prompt=3, keep="all")
    held = sample(per_prompt=3, keep="all", split="held-out")
    ids = [row["id"] for row in train], [row["id"] for row in held]
    assert len(ids[0]) == 3 * len(set(ids[0]))
    assert set(ids[0]).isdisjoint(ids[1])
    assert set(ids[0]) | set(ids[1]) == {row["id"] for row in lab.rows()}
    assert [row["draw"] for row in train] == sorted(row["draw"] for row in train)
    assert train[0].keys() == {
        *("prompt", "completion", "id", "reward", "right", "share_right", "rewards", "length"),
        *("truncated", "draw", "index"),
    }
    for row in train:
        assert row["prompt"] == f"question {row['id']}"
        assert row["reward"] == row["rewards"]["even"] == even([row["completion"]])[0]
        assert row["right"] == (row["reward"] == 1)
        of_prompt = [other["right"] for other in train if other["id"] == row["id"]]
        assert row["share_right"] == sum(of_prompt) / 3


def test_the_same_seed_draws_the_same_and_fewer_prompts_are_a_beginning(run):
    sample = run()
    whole = sample(per_prompt=3, keep="all")
    assert sample("train.sample_batch=1", per_prompt=3, keep="all") == whole
    assert sample(per_prompt=3, keep="all", prompts=2) == whole[:6]
    other = sample(per_prompt=3, keep="all", seed=1)
    assert [row["prompt"] for row in other] == [row["prompt"] for row in whole]
    assert other != whole


def test_it_draws_by_the_weights_of_the_checkpoint_and_by_seeds_of_its_own(run, lab):
    seen = []

    class Recording(lab.Tabular):
        def sample(self, prompts, *, seeds, purpose="train", **more):
            seen.append((purpose, self.table.detach().clone(), seeds))
            return super().sample(prompts, seeds=seeds, purpose=purpose, **more)

    sample = run(policy=Recording)
    trained, seeds = seen[-1][1], {seed for _, _, seeds in seen for seed in seeds}
    seen.clear()
    sample(per_prompt=3)
    assert {purpose for purpose, _, _ in seen} == {"evaluate"}
    for _, table, own in seen:
        assert torch.equal(table, trained)
        assert seeds.isdisjoint(own)


def test_averaged_weights_where_the_run_has_them(run, lab):
    seen = []

    class Recording(lab.Tabular):
        def sample(self, *rest, **more):
            seen.append(self.table.detach().clone())
            return super().sample(*rest, **more)

    settings = {"steps": 2, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.1, "ema": 0.9}
    sample = run(policy=Recording, train=settings)
    averaged = seen[-1]
    sample(per_prompt=2)
    assert torch.equal(seen[-1], averaged)


def test_best_is_the_highest_reward_among_the_right_ones_then_the_shortest():
    drawn = samples(
        ("wrong", 9.0, False, 1),
        ("long", 2.0, True, 5),
        ("short", 2.0, True, 3),
        ("short too", 2.0, True, 3),
        ("low", 1.0, True, 1),
        ("short", 2.0, True, 3),
    )

    def kept(**selection):
        return [s["index"] for s in Selection(per_prompt=6, **selection).kept(drawn, judged=True)]

    assert kept() == [2]
    assert kept(at_most=3) == [2, 3, 1]
    assert kept(keep="right") == [2, 3, 1, 4]  # "short" once
    assert kept(keep="right", at_most=2) == [2, 3]
    assert kept(keep="all") == [0, 1, 2, 3, 4, 5]


def test_nothing_is_kept_of_a_prompt_without_a_right_one_or_with_none_that_ended():
    wrong = samples(("a", 1.0, False, 1), ("b", None, None, 1))
    cut = [{**sample, "truncated": True} for sample in samples(("a", 1.0, True, 1))]
    for keep in ("best", "right"):
        assert Selection(per_prompt=2, keep=keep).kept(wrong, judged=True) == []
        assert Selection(per_prompt=2, keep=keep).kept(cut, judged=True) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.none() | st.integers(0, 3).map(float),
            st.sampled_from([True, False]),
            st.integers(1, 3),
        ),
        max_size=8,
    ),
    st.integers(1, 8),
)
def test_what_is_kept_is_right_distinct_and_ordered(facts, most):
    kept = Selection(per_prompt=8, keep="right", at_most=most).kept(samples(*facts), judged=True)
    assert all(sample["right"] and sample["total"] is not None for sample in kept)
    completions = [sample["completion"] for sample in kept]
    assert len(completions) == len(set(completions)) <= most
    ranks = [(-sample["total"], sample["length"], sample["index"]) for sample in kept]
    assert ranks == sorted(ranks)
    best = Selection(per_prompt=8).kept(samples(*facts), judged=True)
    assert best == kept[:1]


def test_a_reward_that_measures_has_a_best_one_and_no_right_ones(run, lab):
    sample = run(lab.ones)
    drawn = sample(per_prompt=4, keep="all")
    best = sample(per_prompt=4)
    assert all(row["right"] is row["share_right"] is None for row in drawn)
    for row in best:
        rewards = [s["reward"] for s in drawn if s["id"] == row["id"] and not s["truncated"]]
        assert row["reward"] == max(rewards)
    with pytest.raises(UserError, match="measures and does not tell right from wrong"):
        sample(per_prompt=4, keep="right")
    right = sample("evaluation.threshold=0.5", per_prompt=4, keep="right")
    assert right
    assert all(row["reward"] >= 0.5 for row in right)


def test_a_reward_that_shows_late_that_it_measures(run, lab):
    def late(completions, **_):
        return [float(len(text) > 3) or 0.5 * next(graded) for text in completions]

    graded = itertools.repeat(0)
    sample = run(
        late, prompts={"name": "rows", "rows": lab.rows(), "held_out": 0.0}, evaluation=NONE
    )
    for keep in ("best", "right"):
        graded = itertools.chain([0] * 6, itertools.repeat(1))
        with pytest.raises(UserError, match=r"set evaluation\.threshold"):
            sample("train.sample_batch=2", per_prompt=4, keep=keep)
    graded = itertools.chain([0] * 6, itertools.repeat(1))
    assert len(sample("train.sample_batch=2", per_prompt=4, keep="all")) == 4 * 8


def test_processes_share_the_prompts(run, lab, tmp_path, monkeypatch):
    """Each process draws its part of every chunk, a last one that does not go round included."""
    sample = run(prompts={"name": "rows", "rows": lab.rows(), "held_out": 0.0}, evaluation=NONE)
    whole = sample(per_prompt=2, keep="all", prompts=5)
    monkeypatch.setattr(sampling, "BATCHES", 1)
    objects = {("policy",): lab.Tabular(), ("rewards", 0): even}
    parts = []
    for rank in range(2):  # `gather_object` gives a single process its own alone
        with reopened(tmp_path / "run", ["train.sample_batch=4"], objects) as opened:
            (one,) = opened.evaluator.team.samplings.values()
            one.process = (rank, 2)
            drawn = answers(opened, Selection(per_prompt=2, keep="all", prompts=5))
            parts.append([row for answered in drawn for row in answered.kept])
    assert [len(part) for part in parts] == [6, 4]
    assert sorted([*parts[0], *parts[1]], key=lambda row: (row["draw"], row["index"])) == whole


def test_rows_that_ask_the_same_are_drawn_once(run, lab):
    rows = [*lab.rows(), *lab.rows()]
    sample = run(prompts={"name": "rows", "rows": rows, "held_out": 0.0}, evaluation=NONE)
    assert sorted(row["id"] for row in sample(per_prompt=1, keep="all")) == list(range(8))
    with pytest.raises(UserError, match="the run has no such prompts"):
        sample(per_prompt=1, split="held-out")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"per_prompt": 0}, "--per-prompt: expected 1 to 100,000 completions, found 0"),
        ({"per_prompt": 4, "keep": "worst"}, "--keep: expected best, right or all, found 'worst'"),
        ({"per_prompt": 4, "split": "test"}, "--split: expected train or held-out, found 'test'"),
        ({"per_prompt": 4, "prompts": 0}, "--prompts: expected 1 or more, found 0"),
        ({"per_prompt": 4, "seed": -1}, "--seed: expected 0 or more, found -1"),
        ({"per_prompt": 4, "at_most": 5}, "--at-most: expected at most --per-prompt 4, found 5"),
        ({"per_prompt": 4, "at_most": 2, "keep": "all"}, "leave it out with --keep all"),
    ],
)
def test_selections_that_make_no_sense(wrong, message):
    with pytest.raises(UserError, match=message):
        Selection(**wrong)


def test_a_source_without_end_needs_a_number_of_prompts(run):
    class Endless:
        def __len__(self):
            return 200_001

        def __getitem__(self, index, /):
            return {"prompt": f"question {index}", "id": index % 8}

    sample = run(prompts=Endless(), evaluation=NONE)
    with pytest.raises(UserError, match="set a number, since the run's source generates 200,001"):
        sample(per_prompt=1)
    assert len(sample(per_prompt=1, keep="all", prompts=5)) == 5


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_runs_of_several_policies(lab, tmp_path, kind):
    """Each policy of a pool draws as many; of a chain the row says what was asked at first."""

    class Writer(lab.Tabular):
        def sample(self, prompts, **how):
            rows = [{**row, "id": len(row["prompt"]) % 4} for row in prompts]
            return super().sample(rows, **how)

    labels = ("one", "two")
    groupwise.train(
        **{kind: [{"label": label, "policy": Writer()} for label in labels]},
        prompts={"name": "rows", "rows": lab.rows()},
        rewards=[lab.ones],
        train={"steps": 1, "groups_per_step": 2, "group_size": 4},
        evaluation=NONE,
        output=tmp_path / "run",
        quiet=True,
    )
    objects = {(kind, number, "policy"): Writer() for number in range(2)}
    objects["rewards", 0] = lab.ones
    drawn = sample_run(
        tmp_path / "run", Selection(per_prompt=3, keep="all", prompts=2), objects=objects
    )
    places = [(row["draw"], row.get("learner"), row["index"]) for row in drawn]
    several = labels if kind == "pool" else (None,)
    assert places == [(n, label, i) for n in range(2) for label in several for i in range(3)]
    assert all(row["prompt"] == f"question {row['id']}" for row in drawn)


def test_a_kill_leaves_whole_lines_of_whole_prompts(run, lab, tmp_path, monkeypatch):
    def killing(completions, **_):
        calls.append(len(completions))
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return even(completions)

    calls = [0] * 10
    monkeypatch.setattr(sampling, "BATCHES", 1)
    run(killing, prompts={"name": "rows", "rows": lab.rows(), "held_out": 0.0}, evaluation=NONE)
    path, calls[:] = tmp_path / "set.jsonl", []
    objects = {("policy",): lab.Tabular(), ("rewards", 0): killing}
    child = os.fork()
    if not child:
        with SampledSet(path) as made, reopened(tmp_path / "run", ONE, objects) as opened:
            for answered in answers(opened, Selection(per_prompt=2, keep="all")):
                made.write(answered.kept)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(row["draw"], row["index"]) for row in rows] == [
        (n, i) for n in range(3) for i in (0, 1)
    ]


class Picture:
    def __init__(self, text):
        self.text = text

    def save(self, path):
        Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + self.text.encode())


def row(draw, completion="a", **more):
    return {"prompt": "p", "completion": completion, "draw": draw, "index": 0, **more}


def test_lines_are_json_whatever_the_columns_hold(tmp_path):
    odd = {"nan": float("nan"), "nested": {"path": Path("a"), 1: (2, None)}, "half": "\ud83d"}
    with SampledSet(tmp_path / "deep" / "set.jsonl") as made:
        made.write([row(0, **odd), row(1)])
    first, second = (tmp_path / "deep" / "set.jsonl").read_text("utf-8").splitlines()
    assert json.loads(first)["nested"] == {"path": "a", "1": [2, None]}
    assert json.loads(first)["nan"] is None
    assert json.loads(second) == row(1)


def test_pictures_lie_beside_the_lines(tmp_path):
    path = tmp_path / "set.jsonl"
    for name in ("first", "second"):
        with SampledSet(path, overwrite=True) as made:
            made.write([row(7 if name == "first" else 8, Picture(name))])
        (line,) = map(json.loads, path.read_text("utf-8").splitlines())
    assert "completion" not in line
    assert line["file_name"] == "set_images/000008_0.png"
    assert (tmp_path / line["file_name"]).read_bytes().endswith(b"second")
    assert len(list((tmp_path / "set_images").iterdir())) == 1


def test_a_file_that_is_there_stays_until_the_first_row(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text("older\n")
    with pytest.raises(UserError, match="--overwrite"):
        SampledSet(path)
    with SampledSet(path, overwrite=True):
        pass
    assert path.read_text() == "older\n"
    with pytest.raises(UserError, match=r"ends in \.jsonl, found .*set\.json"):
        SampledSet(tmp_path / "set.json")


def test_a_row_that_cannot_be_written_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "set.jsonl"
    with SampledSet(path) as made:
        made.write([row(0)])
        file = made._opened()

        class Full:
            tell, truncate, close = file.tell, file.truncate, file.close

            def write(self, data):
                if len(data) < 20:
                    raise OSError(28, "No space left on device")
                return file.write(data[:-10])

        monkeypatch.setattr(made, "_file", Full())
        with pytest.raises(OSError, match="No space"):
            made.write([row(1), row(2)])
    assert [json.loads(line)["draw"] for line in path.read_text().splitlines()] == [0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--per-prompt", "2"], "is not the folder of a run: it has no config.yaml"),
        (["--per-prompt", "0"], "--per-prompt: expected 1 to 100,000 completions, found 0"),
        (["--per-prompt", "2", "--output", "set.csv"], "a file name that ends in .jsonl"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, arguments, message):
    result = CliRunner().invoke(app, ["sample", str(tmp_path), *arguments])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("error: ")
    assert message in line
