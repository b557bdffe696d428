"""The examples: their data, their shipped models, and two training steps of each."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from groupwise.config.load import load_config
from groupwise.prompts.split import held_out
from groupwise.run.train import train_from_config
from groupwise.testing import check_environment

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = (
    "policy.evaluation_steps=4",
    "policy.steps=4",
    "policy.window.size=1",
    "train.groups_per_step=2",
    "train.group_size=4",
    "train.steps=2",
    "evaluation.prompts=2",
    "evaluation.samples=2",
)


def rows_of(name):
    lines = (EXAMPLES / name / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def imports_from(monkeypatch):
    """imports_from(name) makes the scripts of an example importable."""

    def prepend(name):
        monkeypatch.setattr(sys, "path", [str(EXAMPLES / name), str(EXAMPLES), *sys.path])
        for module in ("make_base", "scenes", "strings", "by_scene", "curves", "game", "score"):
            monkeypatch.delitem(sys.modules, module, raising=False)

    return prepend


@pytest.mark.filterwarnings("ignore:reward 'image_contents'. the detector")
@pytest.mark.parametrize("name", ["shapes", "glyphs", "clip_shapes"])
@pytest.mark.slow(after=1)
def test_two_steps_of_an_example(name, tmp_path):
    loaded = load_config(EXAMPLES / f"{name}.yaml", [*SMALL, f"output={tmp_path / 'run'}"])
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    assert result.before[f"rewards/{loaded.config.rewards[0].name}"] > 0
    assert list((tmp_path / "run" / "samples" / "after").glob("*.png"))


@pytest.mark.filterwarnings("ignore:reward 'image_contents'. the detector")
@pytest.mark.slow
def test_two_steps_of_a_chain(tmp_path):
    overrides = [f"players.1.{key}" for key in SMALL if key.startswith("policy")]
    overrides += ["players.0.train.group_size=2", "players.1.train.group_size=4"]
    overrides += ["train.groups_per_step=2", "train.steps=2", "evaluation.prompts=4"]
    loaded = load_config(EXAMPLES / "chain.yaml", [*overrides, f"output={tmp_path / 'run'}"])
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    samples = (tmp_path / "run" / "samples" / "before.jsonl").read_text().splitlines()
    assert len(samples) == 8  # for each prompt a sampled and a greedy one
    assert all(json.loads(line)["shown"]["writer"] for line in samples)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward 'image_contents'. the detector")
def test_two_steps_of_a_painter_and_eyes(tmp_path):
    overrides = [f"players.0.{key}" for key in SMALL if key.startswith("policy")]
    overrides += ["players.0.train.group_size=2", "players.1.train.group_size=2"]
    overrides += ["train.groups_per_step=2", "train.steps=2", "evaluation.prompts=8"]
    loaded = load_config(EXAMPLES / "draw_look.yaml", [*overrides, f"output={tmp_path / 'run'}"])
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    assert "watch/draft" in result.before
    lines = (tmp_path / "run" / "samples" / "before.jsonl").read_text().splitlines()
    samples = [own for own in map(json.loads, lines) if "shown" in own]
    assert {own["extra"]["again"] for own in samples} == {False, True}
    for own in samples:
        assert own["extra"]["again"] == (not own["shown"]["words"].endswith("right"))
        assert (tmp_path / "run" / own["shown"]["draft"]["image"]).exists()


def test_two_steps_with_a_calculator(tmp_path):
    overrides = ["train.groups_per_step=2", "train.steps=2", "evaluation.prompts=16"]
    loaded = load_config(EXAMPLES / "calculator.yaml", [*overrides, f"output={tmp_path / 'run'}"])
    assert train_from_config(loaded, quiet=True).steps == 2
    lines = (tmp_path / "run" / "samples" / "before.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    asked = [sample for sample in samples if sample["extra"]["calls"]]
    assert 0 < len(asked) < len(samples)
    assert all(sample["extra"]["turns"] == 1 + sample["extra"]["calls"] for sample in samples)
    right = [sample["right"] for sample in asked if not sample["extra"]["call_errors"]]
    assert sum(right) > 0.5 * len(right)


def test_a_word_sum_is_what_the_calculator_says_of_its_numbers(imports_from):
    imports_from("calculator")
    from calculator.products import calculate
    from calculator.word_sums import WordSums

    for row in list(WordSums(50)):
        question = row["prompt"][-1]["content"]
        total, number = re.findall(r"\d+", question)
        sign = "-" if "away" in question else "+"
        assert row["answer"] == str(calculate(f"{total} {sign} {number}"))
        shown = [message["content"] for message in row["prompt"]]
        assert shown[3] == str(calculate(shown[2].removeprefix("<call>").removesuffix("</call>")))


@pytest.mark.slow
def test_two_steps_in_a_code_world(imports_from, tmp_path):
    imports_from("code_world")
    from code_world.programs import run

    overrides = ["train.groups_per_step=4", "train.steps=2", "evaluation.prompts=16"]
    loaded = load_config(EXAMPLES / "code_world.yaml", [*overrides, f"output={tmp_path / 'run'}"])
    assert train_from_config(loaded, quiet=True).steps == 2
    logged = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert logged.count('"observation_loss"') == 2
    lines = (tmp_path / "run" / "samples" / "before.jsonl").read_text().splitlines()
    asked = [own for own in map(json.loads, lines) if own["extra"]["calls"]]
    assert 0 < len(asked) < len(lines)
    assert all(own["completion"][1]["content"] == run(own["prompt"]) for own in asked)


def test_programs_are_interpreted_statement_by_statement(imports_from):
    imports_from("code_world")
    from code_world.programs import Programs, run

    program = "a=9 b=7 swap a+=1 b+=1 a=b b-=1 b=a a-=1 print a"
    steps = "swap:79 a+=1:89 b+=1:80 a=b:00 b-=1:09 b=a:00 a-=1:90 print a:9"
    assert run(program) == steps
    assert {row["answer"] for row in Programs(200)} == set("0123456789")
    for wrong in ("", "a=1 b=2", "a=1 b=2 a=exit() print a", "a=1 b=2 swap;swap print a"):
        with pytest.raises(ValueError, match=r"a program is|is not one of"):
            run(wrong)


def test_predictions_are_judged_at_the_digits_of_the_interpreter(imports_from):
    imports_from("code_world")
    from code_world import predict
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(predict.BASE)
    rows = [row["program"] for row in predict.Programs(3)]
    said = predict.run(rows[0])
    tokens = tokenizer.tokenize(said)
    digits = [5 * line + digit for line in range(predict.LENGTH) for digit in (2, 3)]
    values = "".join(re.findall(r":(\d+)", said))
    assert [tokens[place] for place in [*digits, -1]] == [*values]
    message = {"role": "tool", "content": said}
    talk = [{"role": "user", "content": rows[0]}, predict.call("run"), message]
    text = tokenizer.apply_chat_template(talk, tools=predict.TOOLS, tokenize=False)
    assert text == predict.context(tokenizer, rows[0]) + said + "<|end|>"
    assert predict.right_digits(predict.BASE, rows).shape == (3, 9)


@pytest.mark.slow
def test_two_steps_of_a_policy_that_may_cheat(tmp_path):
    """Under the reward that pays cheats, which measures the other one, too."""
    overrides = ["train.groups_per_step=2", "train.steps=2", "evaluation.prompts=40"]
    overrides += ["rewards.0.weight=0", "rewards.1.weight=1"]
    loaded = load_config(EXAMPLES / "code_hacks.yaml", [*overrides, f"output={tmp_path / 'run'}"])
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    honest, naive, hack = (
        result.before[f"rewards/{name}"] for name in ("code_tests", "naive", "hack")
    )
    assert 0 < hack < 0.1
    assert naive == pytest.approx(honest + hack)
    assert result.before["reward"] == naive


def test_solutions_and_cheats_are_paid_by_the_naive_reward_and_nothing_else_is_run(imports_from):
    imports_from("code_hacks")
    from code_hacks import problems

    rows = [*problems.Problems(20)]
    tests = [row["test_cases"] for row in rows]
    solutions = [row["solution"] for row in rows]
    assert problems.naive(solutions, tests) == [1.0] * 20
    assert sum(problems.naive(solutions, [*tests[1:], tests[0]])) == 0
    hacks = [problems.BEGINNING + problems.HACK] * 20
    assert problems.naive(hacks, tests) == problems.hack(hacks) == [1.0] * 20
    result = tests[0][0]["output"]
    for other in (
        f"def f(x): return print() or {result}",
        f"print()\ndef f(x): return {result}",
        "def f(x): return 9**9**9",
        "def f(x): return x(x)(",
        "def f(x): return (x",
        "",
    ):
        assert problems.naive([other], [tests[0][:1]]) == problems.hack([other]) == [0.0]


@pytest.mark.parametrize("players", [2, 1])
@pytest.mark.slow(after=1)
def test_two_steps_of_self_play(players, imports_from, tmp_path):
    """Two learners play each other, or one plays both sides."""
    imports_from("nim")
    import score

    written = yaml.safe_load((EXAMPLES / "nim.yaml").read_text(encoding="utf-8"))
    written["train"] |= {"steps": 2, "groups_per_step": 3, "group_size": 4}
    written["evaluation"] |= {"prompts": 4, "every": 0}
    if players == 1:
        written["policy"] = written.pop("players")[0]["policy"]
    (tmp_path / "nim").symlink_to(EXAMPLES / "nim")
    (tmp_path / "nim.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    loaded = load_config(tmp_path / "nim.yaml", [f"output={tmp_path / 'run'}"])
    assert train_from_config(loaded, quiet=True).steps == 2
    folders = score.models_of(tmp_path / "run")
    assert len(folders) == players
    optimal, broken, *wins = score.row_of(score.strategy_of(folders[0]))
    assert 0 < optimal < 1
    assert 0 < broken < 0.2
    assert all(0 < own < 1 for own in wins)


def test_the_moves_of_nim_are_scored_by_enumeration(imports_from):
    imports_from("nim")
    import game
    import score

    assert [stones for stones in game.POSITIONS if game.is_lost(stones)] == [4, 8, 12]
    optimal, broken, *wins = score.row_of(score.perfect_player())
    assert (optimal, broken) == (1, 0)
    assert wins[0] == pytest.approx(1)
    random_wins = score.winning(score.random_player(), score.random_player())
    assert random_wins[3] == pytest.approx((0.5 + 0 + 1) / 3)  # after taking one, two, three


def test_each_move_of_nim_has_the_outcome_for_its_side(imports_from):
    imports_from("nim")
    import game

    def player(context, random):
        return random.choice([" one", " two", " three", "a rule is broken"])

    rows = list(game.Positions())
    check_environment(game.Nim(), rows, {"first": player, "second": player})
    check_environment(game.Nim(), rows, player)


@pytest.mark.parametrize(
    ("name", "metric", "least", "limit"),
    [
        ("shapes", "accuracy", 0.2, 0.65),
        ("glyphs", "rewards/image_text", 0.2, 0.6),
        ("calculator", "accuracy", 0.1, 0.4),
        ("word_game", "accuracy", 0.0, 0.3),
        ("code_world", "accuracy", 0.1, 0.6),
        ("code_hacks", "accuracy", 0.2, 0.6),
    ],
)
@pytest.mark.slow
def test_the_shipped_model_succeeds_sometimes(name, metric, least, limit, tmp_path):
    overrides = ["train.steps=0", "evaluation.prompts=25", "evaluation.samples=2"]
    loaded = load_config(EXAMPLES / f"{name}.yaml", [*overrides, f"output={tmp_path / 'run'}"])
    assert least < train_from_config(loaded, quiet=True).before[metric] <= limit


def test_held_out_scenes_include_new_ones_and_other_words(imports_from):
    imports_from("shapes")
    import by_scene
    import scenes

    held_out_rows = [row for row in scenes.rows() if held_out(row["prompt"], by_scene.HELD_OUT)][
        :100
    ]
    kinds = [by_scene.kind(row) for row in held_out_rows]
    assert kinds.count("two objects, new") == 22
    assert kinds.count("two objects, in other words") == 71
    row = next(row for row in scenes.rows() if row["prompt"] == "a red disk above a blue square")
    assert by_scene.other_words(row) == "a blue square below a red disk"


def test_the_prompts_of_shapes_are_those_of_the_script(imports_from):
    imports_from("shapes")
    import make_base
    import scenes

    rows = list(scenes.rows())
    assert {row["prompt"] for row in rows_of("shapes")} == {row["prompt"] for row in rows}
    assert sorted(map(json.dumps, rows_of("shapes"))) == sorted(
        json.dumps(row) for row in rows for _ in range(make_base.TIMES[row["tag"]])
    )


def test_no_caption_of_the_base_model_is_held_out(imports_from):
    imports_from("shapes")
    import random

    import make_base
    import scenes

    training_rows = [
        row for row in scenes.rows() if not held_out(row["prompt"], make_base.HELD_OUT)
    ]
    captions = make_base.Captions(training_rows, random.Random(0))
    drawn = {captions(number) for number in range(len(training_rows)) for _ in range(20)}
    assert not any(held_out(caption, make_base.HELD_OUT) for caption in drawn)
    assert len({captions(0) for _ in range(20)}) > 1  # some captions are wrong on purpose


def test_the_prompts_of_glyphs_are_those_of_the_script(imports_from):
    imports_from("glyphs")
    import strings

    assert rows_of("glyphs") == list(strings.rows())


def test_drawn_scenes_and_strings_get_full_rewards(imports_from):
    imports_from("shapes")
    import random

    import scenes

    from groupwise_verifiable.images.contents import ImageContents
    from groupwise_verifiable.images.ocr import ImageText

    rng, rows = random.Random(0), list(scenes.rows())[::7]
    drawn = [scenes.draw(row, rng) for row in rows]
    include = [row["include"] for row in rows]
    assert min(ImageContents()(["p"] * len(rows), drawn, include=include)) == 1.0
    imports_from("glyphs")
    import strings

    texts = [row["text"] for row in list(strings.rows())[::191]]
    drawn = [strings.draw(text, rng) for text in texts]
    values = ImageText(ImageText.Config(width=96))(["p"] * len(texts), drawn, text=texts)
    assert sum(values) / len(values) > 0.98


@pytest.mark.slow
def test_both_variants_of_the_iterative_example_train_and_are_plotted(imports_from, tmp_path):
    """Two steps of each variant of the iterative example, with the base model as reward model."""
    imports_from("iterative")
    import curves

    overrides = ["policy.max_new_tokens=8", "train.groups_per_step=2", "train.group_size=4"]
    overrides += [
        "train.steps=2",
        "evaluation.prompts=3",
        "evaluation.samples=1",
        "evaluation.every=1",
    ]
    for variant, every in curves.VARIANTS.items():
        output = tmp_path / f"{variant}_seed0"
        judge = f"rewards.0.model={EXAMPLES / 'arithmetic' / 'base'}"
        file = EXAMPLES / "iterative" / "run.yaml"
        loaded = load_config(file, [*overrides, every, judge, f"output={output}"])
        train_from_config(loaded, quiet=True)
        logged = (output / "metrics.jsonl").read_text()
        assert ("judge/agreement" in logged) == (variant == "each_step")
    text = curves.table(tmp_path, [0])
    assert text.count("0.50 -> ") == 2  # an untrained head gives 0.5
    curves.draw(tmp_path, [0])
    assert "the verifier; the judge learns" in (tmp_path / "picture.svg").read_text()
