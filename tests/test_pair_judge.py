"""The example of a judge of pairs: its pairs and judgements, and each of its stages in small."""

import json
import random
import sys
from pathlib import Path

import pytest

from groupwise.config.load import load_config
from groupwise.prompts.split import held_out
from groupwise.run.train import train_from_config
from groupwise_judge.comparison import FIRST, WINNER
from groupwise_judge.unified_reward import Thoughts
from groupwise_verifiable.images.contents import ImageContents

EXAMPLES = Path(__file__).parents[1] / "examples"
JUDGE = EXAMPLES / "judge"
NAMES = ("judge", "shapes", "draw_look", "small_qwen2_5_vl")


@pytest.fixture(autouse=True)
def imports_from_examples(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    yield
    for name in [*sys.modules]:
        if name.partition(".")[0] in NAMES:
            monkeypatch.delitem(sys.modules, name)


def painted(count, seed=0):
    """Captions, pairs of scenes, and pictures of these by the rule."""
    from judge.judgements import pair
    from judge.make_base import TRAINING
    from shapes.scenes import draw

    chance = random.Random(seed)
    for caption in chance.choices([*TRAINING.values()], k=count):
        two = pair(caption, TRAINING, chance)
        yield caption, two, [draw(own, chance) for own in two]


def test_one_picture_of_a_pair_is_right_and_its_judgement_says_which():
    from judge.judgements import judgement

    verifier, firsts = ImageContents(), 0
    for caption, two, pictures in painted(40):
        text = judgement(caption, two)
        values, thinking = Thoughts().read(text)
        is_first = values[WINNER] == FIRST
        right = verifier([caption] * 2, pictures, include=[caption["include"]] * 2)
        assert right == [float(is_first), float(not is_first)]
        told = [line.endswith(": right") for line in thinking.split("\n")]
        assert told == [is_first, not is_first]
        firsts += is_first
    assert 10 < firsts < 30


def test_no_picture_of_the_rule_shows_a_held_out_caption():
    from judge.make_base import HELD_OUT

    for _, two, _ in painted(200):
        assert not any(held_out(own["prompt"], HELD_OUT) for own in two)
    for name in ("judge", "painter"):
        prompts = load_config(JUDGE / f"{name}.yaml", []).config.prompts
        assert prompts.held_out == (HELD_OUT if name == "painter" else 0)


def test_pairs_of_the_recipe_are_of_a_right_and_a_wrong_picture():
    from judge.recipe import COMPARED, pairs

    drawn = [
        {"prompt": "a red disk above a red square", "file_name": f"{n}.png", "right": n in (1, 4)}
        for n in range(6)
    ]
    rows = pairs(drawn, random.Random(0))
    assert len(rows) == COMPARED
    for row in rows:
        which = int(row["answer"].split()[1]) - 1
        assert row["images"][which] in ("1.png", "4.png")
        assert row["images"][1 - which] not in ("1.png", "4.png")
    assert pairs([own for own in drawn if own["right"]], random.Random(0)) == []


@pytest.mark.slow
def test_a_step_of_each_stage_of_the_judge(tmp_path):
    from judge import sft
    from judge.judgements import ANSWERS, judgement, question

    rows = []
    for number, (caption, two, pictures) in enumerate(painted(40)):
        names = [f"{number}_{side}.png" for side in range(2)]
        for name, picture in zip(names, pictures, strict=True):
            picture.save(tmp_path / name)
        text = judgement(caption, two)
        rows.append(
            {
                "prompt": [{"role": "user", "content": question(caption["prompt"])}],
                "completion": [{"role": "assistant", "content": text}],
                "images": names,
                "right": number < 35,
                "answer": ANSWERS[two[1] == caption],
            }
        )
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len([*sft.of_the_judge(data)]) == 35
    few = ("--steps", "1", "--count", "40")
    sft.main(["--model", str(JUDGE / "base"), "--output", str(tmp_path / "cold"), *few])
    more = ("--data", str(data), *few)
    sft.main(["--model", str(tmp_path / "cold"), "--output", str(tmp_path / "more"), *more])
    overrides = [f"policy.model={tmp_path / 'more'}", f"output={tmp_path / 'run'}"]
    overrides += [f"prompts.path={data}", f"evaluation.source.path={data}", "train.steps=1"]
    overrides += ["train.groups_per_step=2", "train.group_size=2", "evaluation.prompts=4"]
    loaded = load_config(JUDGE / "judge.yaml", overrides)
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 1
    assert {"rewards/accuracy", "rewards/format"} <= result.after.keys()


@pytest.mark.filterwarnings("ignore:reward 'image_contents'. the detector")
@pytest.mark.slow
def test_two_steps_by_the_wins_that_the_judge_gives(tmp_path):
    from judge.judgements import CAPTIONS
    from judge.recipe import write

    write(tmp_path / "captions.jsonl", CAPTIONS)
    overrides = ["policy.evaluation_steps=10", f"prompts.path={tmp_path / 'captions.jsonl'}"]
    overrides += ["train.groups_per_step=2", "train.group_size=4", "train.steps=2"]
    overrides += ["rewards.0.opponents=2", "evaluation.prompts=2", "evaluation.every=0"]
    overrides += [f"output={tmp_path / 'run'}"]
    loaded = load_config(JUDGE / "painter.yaml", overrides)
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    assert 0 < result.before["reward"] < 1  # it is compared with itself
    assert "watch/image_contents" in result.after
