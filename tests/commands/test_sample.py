"""`groupwise sample`: drawing and selecting completions, and the written file after a kill."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.command_line import call

import groupwise
from groupwise.kit.errors import UserError
from groupwise.run import reopening
from groupwise.run.reopening import reopened
from groupwise_commands.sampled_set import SampledSet
from groupwise_commands.sampling import sample_run, sampled_prompts
from groupwise_commands.selection import Selection


def even(completions, **_):
    """Right if the number of 1s is even."""
    return [float(text.count("1") % 2 == 0) for text in completions]


even.judges = True


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
            # A policy with other weights, since those of the checkpoint must be loaded.
            objects = {("policy",): policy(seed=1), ("rewards", 0): reward}
            if not isinstance(sections.get("prompts", {}), dict):
                objects["prompts",] = sections["prompts"]
            return sample_run(tmp_path / "run", Selection(**selection), overrides, objects=objects)

        return sample

    return make


NO_EVALUATION = {"prompts": 0}
SMALL_BATCH = ["train.sample_batch=2"]


def samples(*facts):
    """Samples of one prompt; facts: (completion, reward, right, length) of each."""
    names = ("completion", "total", "right", "length")
    return [
        {**dict(zip(names, values, strict=True)), "index": n, "truncated": False}
        for n, values in enumerate(facts)
    ]


def test_each_prompt_of_a_split_is_sampled_once_with_all_its_completions(run, lab):
    sample = run()
    train = sample(per_prompt=3, keep="all")
    evaluated = sample(per_prompt=3, keep="all", split="held-out")
    ids = [row["id"] for row in train], [row["id"] for row in evaluated]
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
        verdicts = [other["right"] for other in train if other["id"] == row["id"]]
        assert row["share_right"] == sum(verdicts) / 3


def test_the_same_seed_gives_the_same_samples_and_fewer_prompts_the_first_ones(run):
    sample = run()
    expected = sample(per_prompt=3, keep="all")
    assert sample("train.sample_batch=1", per_prompt=3, keep="all") == expected
    assert sample(per_prompt=3, keep="all", prompts=2) == expected[:6]
    other = sample(per_prompt=3, keep="all", seed=1)
    assert [row["prompt"] for row in other] == [row["prompt"] for row in expected]
    assert other != expected


def test_samples_use_the_weights_of_the_checkpoint_and_other_seeds_than_training(run, lab):
    calls = []

    class Recording(lab.Tabular):
        def sample(self, prompts, *, seeds, purpose="train", **options):
            calls.append((purpose, self.table.detach().clone(), seeds))
            return super().sample(prompts, seeds=seeds, purpose=purpose, **options)

    sample = run(policy=Recording)
    trained, seeds = calls[-1][1], {seed for _, _, seeds in calls for seed in seeds}
    calls.clear()
    sample(per_prompt=3)
    assert {purpose for purpose, _, _ in calls} == {"evaluate"}
    for _, table, sample_seeds in calls:
        assert torch.equal(table, trained)
        assert seeds.isdisjoint(sample_seeds)


def test_samples_use_averaged_weights_if_the_run_has_them(run, lab):
    tables = []

    class Recording(lab.Tabular):
        def sample(self, *args, **options):
            tables.append(self.table.detach().clone())
            return super().sample(*args, **options)

    settings = {"steps": 2, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.1, "ema": 0.9}
    sample = run(policy=Recording, train=settings)
    averaged = tables[-1]
    sample(per_prompt=2)
    assert torch.equal(tables[-1], averaged)


def test_best_is_the_highest_reward_among_the_right_ones_then_the_shortest():
    candidates = samples(
        ("wrong", 9.0, False, 1),
        ("long", 2.0, True, 5),
        ("short", 2.0, True, 3),
        ("short too", 2.0, True, 3),
        ("low", 1.0, True, 1),
        ("short", 2.0, True, 3),
    )

    def selected(**selection):
        return [
            s["index"] for s in Selection(per_prompt=6, **selection).kept(candidates, judged=True)
        ]

    assert selected() == [2]
    assert selected(at_most=3) == [2, 3, 1]
    assert selected(keep="right") == [2, 3, 1, 4]  # equal completions count once
    assert selected(keep="right", at_most=2) == [2, 3]
    assert selected(keep="all") == [0, 1, 2, 3, 4, 5]


def test_wrong_and_truncated_completions_are_never_selected():
    wrong = samples(("a", 1.0, False, 1), ("b", None, None, 1))
    truncated = [{**sample, "truncated": True} for sample in samples(("a", 1.0, True, 1))]
    for keep in ("best", "right"):
        assert Selection(per_prompt=2, keep=keep).kept(wrong, judged=True) == []
        assert Selection(per_prompt=2, keep=keep).kept(truncated, judged=True) == []


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
def test_selected_completions_are_right_distinct_and_ordered(facts, at_most):
    selected = Selection(per_prompt=8, keep="right", at_most=at_most).kept(
        samples(*facts), judged=True
    )
    assert all(sample["right"] and sample["total"] is not None for sample in selected)
    completions = [sample["completion"] for sample in selected]
    assert len(completions) == len(set(completions)) <= at_most
    ranks = [(-sample["total"], sample["length"], sample["index"]) for sample in selected]
    assert ranks == sorted(ranks)
    best = Selection(per_prompt=8).kept(samples(*facts), judged=True)
    assert best == selected[:1]


def test_a_reward_that_does_not_judge_has_best_completions_but_no_right_ones(run, lab):
    sample = run(lab.ones)
    all_rows = sample(per_prompt=4, keep="all")
    best = sample(per_prompt=4)
    assert all(row["right"] is row["share_right"] is None for row in all_rows)
    for row in best:
        rewards = [s["reward"] for s in all_rows if s["id"] == row["id"] and not s["truncated"]]
        assert row["reward"] == max(rewards)
    with pytest.raises(UserError, match="no reward of this run says that it tells right"):
        sample(per_prompt=4, keep="right")
    right = sample("evaluation.threshold=0.5", per_prompt=4, keep="right")
    assert right
    assert all(row["reward"] >= 0.5 for row in right)


def test_processes_divide_the_prompts(run, lab, tmp_path, monkeypatch):
    """Each process draws its part of every chunk, also of an incomplete last one."""
    sample = run(
        prompts={"name": "rows", "rows": lab.rows(), "held_out": 0.0}, evaluation=NO_EVALUATION
    )
    expected = sample(per_prompt=2, keep="all", prompts=5)
    monkeypatch.setattr(reopening, "BATCHES", 1)
    objects = {("policy",): lab.Tabular(), ("rewards", 0): even}
    parts = []
    for rank in range(2):  # in one process `gather_object` returns only its own object
        with reopened(tmp_path / "run", ["train.sample_batch=4"], objects) as opened:
            (policy_sampling,) = opened.evaluator.sampler.samplings.values()
            policy_sampling.process = (rank, 2)
            results = sampled_prompts(opened, Selection(per_prompt=2, keep="all", prompts=5))
            parts.append([row for result in results for row in result.kept])
    assert [len(part) for part in parts] == [6, 4]
    assert sorted([*parts[0], *parts[1]], key=lambda row: (row["draw"], row["index"])) == expected


def test_rows_with_equal_prompts_are_sampled_once(run, lab):
    rows = [*lab.rows(), *lab.rows()]
    sample = run(prompts={"name": "rows", "rows": rows, "held_out": 0.0}, evaluation=NO_EVALUATION)
    assert sorted(row["id"] for row in sample(per_prompt=1, keep="all")) == list(range(8))
    with pytest.raises(UserError, match="the run has no such prompts"):
        sample(per_prompt=1, split="held-out")


@pytest.mark.parametrize(
    ("options", "message"),
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
def test_contradicting_selections_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Selection(**options)


@pytest.mark.slow
def test_a_very_large_source_needs_a_number_of_prompts(run):
    class Large:
        def __len__(self):
            return 200_001

        def __getitem__(self, index, /):
            return {"prompt": f"question {index}", "id": index % 8}

    sample = run(prompts=Large(), evaluation=NO_EVALUATION)
    with pytest.raises(UserError, match="set a number, since the run's source generates 200,001"):
        sample(per_prompt=1)
    assert len(sample(per_prompt=1, keep="all", prompts=5)) == 5


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_runs_of_several_policies_can_be_sampled(lab, tmp_path, kind):
    """Each policy of a pool draws as many; rows of a chain have the prompt of its first policy."""

    class Writer(lab.Tabular):
        def sample(self, prompts, **options):
            rows = [{**row, "id": len(row["prompt"]) % 4} for row in prompts]
            return super().sample(rows, **options)

    labels = ("one", "two")
    groupwise.train(
        environment=kind,
        players=[{"label": label, "policy": Writer()} for label in labels],
        prompts={"name": "rows", "rows": lab.rows()},
        rewards=[lab.ones],
        train={"steps": 1, "groups_per_step": 2, "group_size": 4},
        evaluation=NO_EVALUATION,
        output=tmp_path / "run",
        quiet=True,
    )
    objects = {("players", number, "policy"): Writer() for number in range(2)}
    objects["rewards", 0] = lab.ones
    sampled_rows = sample_run(
        tmp_path / "run", Selection(per_prompt=3, keep="all", prompts=2), objects=objects
    )
    order = [(row["draw"], row.get("learner"), row["index"]) for row in sampled_rows]
    learners = labels if kind == "pool" else (None,)
    assert order == [(n, label, i) for n in range(2) for label in learners for i in range(3)]
    assert all(row["prompt"] == f"question {row['id']}" for row in sampled_rows)


def test_a_kill_leaves_complete_lines_of_complete_prompts(run, lab, tmp_path, monkeypatch):
    def killing(completions, **_):
        calls.append(len(completions))
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return even(completions)

    calls = [0] * 10
    monkeypatch.setattr(reopening, "BATCHES", 1)
    run(
        killing,
        prompts={"name": "rows", "rows": lab.rows(), "held_out": 0.0},
        evaluation=NO_EVALUATION,
    )
    path, calls[:] = tmp_path / "set.jsonl", []
    objects = {("policy",): lab.Tabular(), ("rewards", 0): killing}
    child = os.fork()
    if not child:
        with (
            SampledSet(path) as sampled_set,
            reopened(tmp_path / "run", SMALL_BATCH, objects) as opened,
        ):
            for result in sampled_prompts(opened, Selection(per_prompt=2, keep="all")):
                sampled_set.write(result.kept)
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


def row(draw, completion="a", **columns):
    return {"prompt": "p", "completion": completion, "draw": draw, "index": 0, **columns}


def test_lines_are_json_for_columns_of_any_type(tmp_path):
    columns = {"nan": float("nan"), "nested": {"path": Path("a"), 1: (2, None)}, "half": "\ud83d"}
    with SampledSet(tmp_path / "deep" / "set.jsonl") as sampled_set:
        sampled_set.write([row(0, **columns), row(1)])
    first, second = (tmp_path / "deep" / "set.jsonl").read_text("utf-8").splitlines()
    assert json.loads(first)["nested"] == {"path": "a", "1": [2, None]}
    assert json.loads(first)["nan"] is None
    assert json.loads(second) == row(1)


def test_images_are_written_to_a_folder_beside_the_file(tmp_path):
    path = tmp_path / "set.jsonl"
    for name in ("first", "second"):
        with SampledSet(path, overwrite=True) as sampled_set:
            sampled_set.write([row(7 if name == "first" else 8, Picture(name))])
        (line,) = map(json.loads, path.read_text("utf-8").splitlines())
    assert "completion" not in line
    assert line["file_name"] == "set_images/000008_0.png"
    assert (tmp_path / line["file_name"]).read_bytes().endswith(b"second")
    assert len(list((tmp_path / "set_images").iterdir())) == 1


def test_images_of_one_episode_have_files_of_their_own(tmp_path):
    with SampledSet(tmp_path / "set.jsonl") as sampled_set:
        sampled_set.write([row(7, Picture(name)) for name in "abc"])
    lines = map(json.loads, (tmp_path / "set.jsonl").read_text("utf-8").splitlines())
    files = [tmp_path / line["file_name"] for line in lines]
    assert [file.read_bytes()[-1:] for file in files] == [b"a", b"b", b"c"]


def test_pictures_of_prompts_are_written_once_and_named(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    red, blue = (pillow.new("RGB", (4, 4), color) for color in ("red", "blue"))
    prompt = [{"role": "user", "content": [{"type": "image", "image": red}]}]
    answer = [{"role": "tool", "content": [{"type": "image", "image": blue}]}]
    rows = [row(n, answer, prompt=prompt, images=[red, blue]) for n in range(2)]
    with SampledSet(tmp_path / "set.jsonl") as target:
        target.write(rows)
    one, other = map(json.loads, (tmp_path / "set.jsonl").read_text().splitlines())
    first, second = one["images"]
    assert one["images"] == other["images"]
    assert len([*(tmp_path / "set_images").iterdir()]) == 2
    assert one["prompt"][0]["content"] == [{"type": "image", "image": first}]
    assert one["completion"][0]["content"] == [{"type": "image", "image": second}]
    with pillow.open(tmp_path / second) as image:
        assert image.getpixel((0, 0)) == (0, 0, 255)


def test_an_existing_file_is_replaced_only_with_the_first_row(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text("older\n")
    with pytest.raises(UserError, match="--overwrite"):
        SampledSet(path)
    with SampledSet(path, overwrite=True):
        pass
    assert path.read_text() == "older\n"
    with pytest.raises(UserError, match=r"ends in \.jsonl, found .*set\.json"):
        SampledSet(tmp_path / "set.json")


def test_a_row_that_cannot_be_written_leaves_complete_lines(tmp_path, monkeypatch):
    path = tmp_path / "set.jsonl"
    with SampledSet(path) as sampled_set:
        sampled_set.write([row(0)])
        file = sampled_set._opened()

        class Full:
            tell, truncate, close = file.tell, file.truncate, file.close

            def write(self, data):
                if len(data) < 20:
                    raise OSError(28, "No space left on device")
                return file.write(data[:-10])

        monkeypatch.setattr(sampled_set, "_file", Full())
        with pytest.raises(OSError, match="No space"):
            sampled_set.write([row(1), row(2)])
    assert [json.loads(line)["draw"] for line in path.read_text().splitlines()] == [0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--per-prompt", "2"], "is not the folder of a run: it has no config.yaml"),
        (["--per-prompt", "0"], "--per-prompt: expected 1 to 100,000 completions, found 0"),
        (["--per-prompt", "2", "--output", "set.csv"], "a file name that ends in .jsonl"),
    ],
)
def test_the_command_refuses_mistakes_in_one_line(tmp_path, arguments, message):
    result = call("sample", tmp_path, *arguments)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("error: ")
    assert message in line
