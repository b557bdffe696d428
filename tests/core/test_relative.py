"""Rewards that compare the completions of a group, and in evaluations with those of the first."""

from collections import Counter
from dataclasses import replace

import pytest
from PIL import Image

import groupwise
from groupwise.kit.errors import UserError
from groupwise.rewards import Reward
from groupwise.run.evaluate import evaluate_run
from groupwise.scoring.scorer import Scorer
from groupwise.storage.samples import read_samples
from groupwise.testing import check_reward


class Longer:
    """Win rate by length: against the references of an evaluation, in training against the group.

    `calls` has the arguments of each call.
    """

    judges, relative = False, True

    def __init__(self):
        self.calls = []

    def __call__(self, prompts, completions, groups, purpose, references):
        self.calls.append((prompts, completions, groups, purpose, references))
        values = []
        for number, (completion, group) in enumerate(zip(completions, groups, strict=True)):
            others = references[number] or [
                other
                for place, (other, its) in enumerate(zip(completions, groups, strict=True))
                if its == group and place != number
            ]
            wins = [self.wins(completion, other) for other in others]
            values.append(sum(wins) / len(wins) if wins else None)
        return values

    @staticmethod
    def wins(one, other):
        return (1 + (len(one) > len(other)) - (len(one) < len(other))) / 2


ROWS = [{"prompt": f"question {number}", "id": number % 2} for number in range(8)]
"""With two tables of logits, so that what is learned shows on held-out prompts, too."""


def train(lab, folder, *rewards, **options):
    base = {
        "policy": lab.Tabular(),
        "prompts": {"name": ROWS, "held_out": 0.5},
        "rewards": rewards,
        "train": {"groups_per_step": 2, "group_size": 4, "learning_rate": 0.5, "steps": 4},
        "evaluation": {"prompts": 3, "samples": 2, "every": 2},
        "output": folder,
        "quiet": True,
    }
    for key, value in options.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return groupwise.train(**base)


def test_purpose_and_groups_are_given_by_name(lab, tmp_path):
    reward = Longer()
    train(lab, tmp_path / "run", reward, train={"sample_batch": 4})
    purposes = Counter(purpose for *_, purpose, _ in reward.calls)
    assert purposes == {"train": 8, "evaluate": 6, "greedy": 3}
    for prompts, completions, groups, purpose, _ in reward.calls:
        size = {"train": 4, "evaluate": 2, "greedy": 1}[purpose]
        assert set(Counter(groups).values()) == {size}, "whole groups"
        assert len(prompts) == len(completions) == len(groups)


def test_evaluations_compare_with_the_first_one(lab, tmp_path):
    reward = Longer()
    result = train(lab, tmp_path / "run", reward)
    first = {
        sample["prompt"]: [
            other["completion"]
            for other in read_samples(tmp_path / "run/samples/before.jsonl")
            if other["prompt"] == sample["prompt"] and not other["greedy"]
        ]
        for sample in read_samples(tmp_path / "run/samples/before.jsonl")
    }
    assert {len(completions) for completions in first.values()} == {2}
    for prompts, _, _, purpose, references in reward.calls:
        due = [[] if purpose == "train" else first[prompt] for prompt in prompts]
        assert references == due
    # The policy learns to be long: by symmetry it wins half at first, and then nearly always.
    assert result.before["rewards/Longer"] == 0.5
    assert result.after["rewards/Longer"] > 0.6


def test_a_watched_reward_may_be_relative(lab, tmp_path):
    result = train(lab, tmp_path / "run", lab.ones, watch=[{"name": Longer()}])
    assert result.before["watch/Longer"] == 0.5
    assert result.after["watch/Longer"] != 0.5


def test_a_resumed_run_compares_with_the_first_evaluation(lab, tmp_path):
    whole = train(lab, tmp_path / "whole", Longer())
    train(lab, tmp_path / "halved", Longer(), train={"steps": 2})
    reward = Longer()
    resumed = train(lab, tmp_path / "halved", reward, resume=True)
    assert resumed.after == whole.after
    assert all(any(each) for *_, purpose, each in reward.calls if purpose != "train")


def test_completions_on_which_a_reward_failed_are_no_references(lab, tmp_path):
    """A resumed run does not know them, as their samples have failed."""

    def fails_first(completions, purpose, trainer_state):
        first = purpose == "evaluate" and not trainer_state.global_step
        return [float("nan") if first and not row else 1.0 for row in range(len(completions))]

    def references(folder, **options):
        reward = Longer()
        train(lab, folder, reward, fails_first, **options)
        return [each for *_, purpose, each in reward.calls if purpose == "greedy"][-1]

    whole = references(tmp_path / "whole")
    references(tmp_path / "halved", train={"steps": 2})
    assert references(tmp_path / "halved", resume=True) == whole
    assert [len(each) for each in whole] == [1, 2, 2]


def test_a_run_that_is_evaluated_again_compares_with_its_first_evaluation(lab, tmp_path):
    objects = {
        ("policy",): lab.Tabular(),
        ("prompts",): ROWS,
        ("rewards", 0): Longer(),
    }
    result = train(lab, tmp_path / "run", Longer())
    evaluated = evaluate_run(tmp_path / "run", objects=objects)
    assert evaluated.metrics == result.after
    objects["rewards", 0] = reward = Longer()
    rows = [{**row, "prompt": f"other {row['prompt']}"} for row in ROWS]
    evaluate_run(tmp_path / "run", objects={**objects, ("prompts",): rows})
    assert not any(map(any, (references for *_, references in reward.calls)))


def test_pictures_are_compared_with_those_of_the_first_evaluation_also_after_resuming(
    lab, tmp_path
):
    class Painter(lab.Tabular):
        def sample(self, *args, **options):
            rollouts = super().sample(*args, **options)
            shades = [min(255, 50 * len(text)) for text in rollouts.completions]
            pictures = [Image.new("RGB", (2, 2), (shade, 0, 0)) for shade in shades]
            return replace(rollouts, completions=pictures)

    class Redder(Longer):
        @staticmethod
        def wins(one, other):
            one, other = (picture.getpixel((0, 0))[0] for picture in (one, other))
            return Longer.wins("x" * one, "x" * other)

    whole = train(lab, tmp_path / "whole", Redder(), policy=Painter())
    train(lab, tmp_path / "halved", Redder(), policy=Painter(), train={"steps": 2})
    resumed = train(lab, tmp_path / "halved", Redder(), policy=Painter(), resume=True)
    assert resumed.after == whole.after
    assert whole.before["rewards/Redder"] == 0.5 < whole.after["rewards/Redder"]


def test_completions_that_failed_are_neither_compared_nor_references(lab):
    reward = Longer()
    plain = lab.build(lab.rows(3), [[1, 0], [1, 1, 0], [1, 0]], group_size=3)
    scorer = Scorer([Reward(name="longer", function=reward)])
    scorer(replace(plain, failures=[None, "no memory", None]))
    assert reward.calls[0][1] == [plain.completions[0], plain.completions[2]]
    scoring = scorer.start(
        replace(plain, failures=["no memory", None, None]),
        purpose="evaluate",
        references=[["a"], ["b"], ["c"]],
    )
    scorer.finish([scoring])
    assert reward.calls[1][-1] == [["b"], ["c"]]


def test_references_of_other_rewards_are_a_column(lab):
    received = []

    def reward(completions, references):
        received.extend(references)
        return [0.0] * len(completions)

    rows = [{**row, "references": f"answer {row['id']}"} for row in lab.rows(2)]
    Scorer([Reward(name="reward", function=reward)])(lab.build(rows, [[1, 0], [0]]))
    assert received == ["answer 0", "answer 1"]
    with pytest.raises(UserError, match="column 'references' collides with the argument"):
        Scorer([Reward(name="longer", function=Longer())])(lab.build(rows, [[1, 0], [0]]))


def test_what_makes_no_sense_is_refused(lab, tmp_path):
    def takes_none(completions, groups):
        return [0.0] * len(completions)

    takes_none.relative = True
    with pytest.raises(UserError, match="is `relative`, so it needs `references` in its signature"):
        train(lab, tmp_path / "run", takes_none)
    with pytest.raises(
        UserError, match=r"expected at least 2 in a group, found 1; set train\.group"
    ):
        train(lab, tmp_path / "run", Longer(), train={"group_size": 1}, algorithm="reinforce_pp")
    judging = Longer()
    judging.judges = True
    algorithm = {"name": "grpo", "importance": "token"}
    with pytest.raises(UserError, match=r"leave train\.replay out, or set the weight of this"):
        train(lab, tmp_path / "run", judging, train={"replay": {}}, algorithm=algorithm)
    assert not (tmp_path / "run").exists()


def test_check_reward_gives_whole_groups(lab):
    texts = ["a", "bb", "ccc", "d"]
    check_reward(Longer(), lab.rows(2), texts, group_size=2)
    with pytest.raises(ValueError, match=r"`relative`.* group_size of 2 or more"):
        check_reward(Longer(), lab.rows(4), texts)
