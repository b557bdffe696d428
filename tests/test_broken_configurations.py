"""`groupwise check` finds what is wrong with a configuration, before a model is loaded, and says
where and what to write instead."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

import groupwise
from groupwise.cli.check import describe
from groupwise.config.load import load_text
from groupwise.kit.errors import UserError
from groupwise_llm.policy import LanguageModel

BASE = Path(__file__).parent.parent / "examples" / "arithmetic" / "base"
SUMS = [{"question": f"{n} + 1 =", "unit": "m", "answer": str(n + 1)} for n in range(20)]
REWARDS = """
import groupwise

def helper(row):
    return row["nope"]

def raises(completions, answer):
    return [helper({}) for _ in answer]

def asked(completions, question, prompts):
    return [float(text == prompt) for text, prompt in zip(question, prompts)]

def few(completions):
    return [1.0]

def texts(completions):
    return ["good" for _ in completions]

def silent(completions):
    return [0.0 for _ in completions]

def needs(completions, email):
    return [0.0 for _ in completions]

async def waits(completions):
    raise ZeroDivisionError("division by zero")
"""
MODULES = ("my_rewards", "broken", "nowhere")
DATASET = {"name": "dataset", "path": "sums.jsonl", "prompt": "question", "held_out": 0.3}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with data and rewards; no policy can be loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(LanguageModel, "__init__", lambda *_: pytest.fail("a model is loaded"))
    write("sums.jsonl", SUMS)
    write("words.jsonl", [{**row, "answer": "Paris"} for row in SUMS])
    write("blank.jsonl", [{**row, "answer": ""} for row in SUMS])
    write("mixed.jsonl", [*SUMS, {**SUMS[0], "question": "?", "answer": "many"}])
    Path("cut.jsonl").write_text('{"question": "1 + 1 ="}\n{"question": \n')
    Path("empty.jsonl").write_text("")
    Path("my_rewards.py").write_text(REWARDS)
    Path("broken.py").write_text("import groupwise\n\nvalue = undefined_name\n")
    yield tmp_path
    for name in MODULES:  # others write modules of these names, too
        sys.modules.pop(name, None)


def write(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def config(**sections):
    """The text of a configuration that is right but for these sections; None leaves one out."""
    whole = {
        "policy": {"name": "language_model", "model": str(BASE), "max_new_tokens": 4},
        "prompts": DATASET,
        "rewards": [{"name": "numeric_answer"}],
        "train": {"steps": 1, "groups_per_step": 2, "group_size": 2},
        "evaluation": {"prompts": 2},
        **sections,
    }
    kept = {name: section for name, section in whole.items() if section is not None}
    return yaml.safe_dump(kept, sort_keys=False)


def check(text):
    return describe(load_text(text, Path("run.yaml")))


def rewards(*names, **options):
    return config(rewards=[{"name": name, **options} for name in names])


def prompts(**options):
    return config(prompts={**DATASET, **options})


def train(**options):
    return config(train={"steps": 1, "groups_per_step": 2, "group_size": 2, **options})


CYRILLIC = [{"prompt": str(number), "text": "\u043c\u0438\u0440"} for number in range(9)]
BROKEN = {
    "a misspelt key": (train(stpes=3), r"line \d+: train.stpes: .*did you mean 'steps'"),
    "a key of another section": (
        config(steps=3),
        r"steps: unknown key, did you mean 'train.steps'",
    ),
    "another library's name": (config(lr=1e-4), r"lr: .*did you mean 'train.learning_rate'"),
    "a key of train in policy": (
        config(policy={"name": "language_model", "model": str(BASE), "learning_rate": 1e-4}),
        r"policy.learning_rate: .*did you mean 'train.learning_rate'",
    ),
    "a second colon": ("policy:\n  model: a: b\n", r"line 2: a second colon: .* needs quotes"),
    "a tab": ("policy:\n\tname: x\n", r"line 2: a tab; indent with spaces"),
    "an open bracket": ("rewards: [a, b\n", r"line 2: a \[ is not closed"),
    "an indent": ("train:\n  steps: 1\n lr: 2\n", r"line 3: this line does not fit"),
    "no policy": (config(policy=None), r"policy: missing"),
    "an unknown policy": (
        config(policy={"name": "lanugage_model", "model": "x"}),
        r"did you mean 'language_model'",
    ),
    "no such model": (
        config(policy={"name": "language_model", "model": "./nowhere"}),
        r"line 3: policy.model: no such file or folder as '\./nowhere' \(looked in ",
    ),
    "no such data": (prompts(path="sum.jsonl"), r"no file sum.jsonl, did you mean 'sums.jsonl'\?"),
    "an unknown column": (prompts(prompt="questoin"), r"'questoin', did you mean 'question'\?"),
    "a template": (prompts(template="{qestion}"), r"'qestion', did you mean 'question'\?"),
    "no data": (prompts(path="empty.jsonl"), r"empty.jsonl is empty"),
    "a cut line": (prompts(path="cut.jsonl"), r"cut.jsonl, line 2: "),
    "a system message": (prompts(system="Be brief."), r"prompts.system: .*needs `chat: true`"),
    "an unknown reward": (rewards("numeric_anwser"), r"did you mean 'numeric_answer'"),
    "numeric_answer: gold": (
        rewards("numeric_answer", gold="answr"),
        r"line \d+: rewards.0.gold: .*needs the column 'answr', did you mean 'answer'\?",
    ),
    "exact_answer: gold": (rewards("exact_answer", gold="x"), r"rewards.0.gold: .*column 'x'"),
    "math: gold": (rewards("math", gold="answers"), r"'answers', did you mean 'answer'\?"),
    "words for numbers": (
        prompts(path="words.jsonl"),
        r"none of the first 20 prompts: expected a number in .* 'answer', found 'Paris'; `exact",
    ),
    "blank answers": (
        prompts(path="blank.jsonl"),
        r"applies to none of .*: no gold answer in the column 'answer'",
    ),
    "targets that cannot be read": (
        config(
            prompts={"name": "rows", "rows": CYRILLIC, "held_out": 0.5},
            rewards=["image_text"],
        ),
        r"'image_text' applies to none of .*: RapidOCR's model does not read .*; leave such rows",
    ),
    "another task's rows": (rewards("reasoning_gym"), r"needs the column 'metadata'"),
    "no such module": (
        rewards("my_reward:silent"),
        r"no module 'my_reward', did you mean 'my_rewards'\?, neither installed nor in /",
    ),
    "no such function": (rewards("my_rewards:silnt"), r"has no 'silnt', did you mean 'silent'"),
    "an import that fails": (
        rewards("broken:value"),
        r"raised NameError: .*\n  at .*broken.py, line 3, in <module>: value = undefined_name",
    ),
    "a reward that raises": (
        rewards("my_rewards:raises"),
        r"KeyError: 'nope'\n  at .*my_rewards.py, line 5, in helper: return row\[\"nope\"\]\n",
    ),
    "an async reward that raises": (
        rewards("my_rewards:waits"),
        r"raised ZeroDivisionError.*\n  at .*my_rewards.py, line 26, in waits",
    ),
    "too few values": (rewards("my_rewards:few"), r"returned 1 value for 6 completions"),
    "values that are texts": (rewards("my_rewards:texts"), r"'good', which is not a number"),
    "a reward's own column": (
        rewards("my_rewards:needs"),
        r"rewards.0: .*needs the column 'email'",
    ),
    "two of one name": (
        rewards("my_rewards:few", "my_rewards:few"),
        r"two rewards are named 'few'",
    ),
    "an unknown accuracy": (
        config(evaluation={"accuracy": "numeric_answr"}),
        r"evaluation.accuracy: no reward 'numeric_answr', did you mean 'numeric_answer'",
    ),
    "a threshold of which reward": (
        config(rewards=["my_rewards:silent", "think_format"], evaluation={"threshold": 0.5}),
        r"evaluation.threshold: .*set evaluation.accuracy to one of silent, think_format",
    ),
    "success of what": (
        config(rewards=["think_format"], prompts={**DATASET, "weighting": {}}),
        r"prompts.weighting: needs to know which completions are right.*evaluation.accuracy",
    ),
    "too many held-out prompts": (
        config(evaluation={"prompts": 19}),
        r"evaluation.prompts asks for 19 held-out prompts, but only",
    ),
    "groups of one": (train(group_size=1), r"train.group_size: .*at least 2, found 1"),
    "a word for a number": (train(group_size="eight"), r"expected a whole number, found 'eight'"),
    "long prompts": (
        config(
            policy={
                "name": "language_model",
                "model": str(BASE),
                "max_new_tokens": 4,
                "max_prompt_tokens": 2,
                "long_prompts": "error",
            }
        ),
        r"prompts, row 0: a prompt of \d+ tokens is longer than policy.max_prompt_tokens: 2",
    ),
    "a schedule beyond the end": (
        rewards("numeric_answer", weight={"start": 1, "end": 0, "steps": 9}),
        r"rewards.0.weight.steps: .*the run has only 1",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.slow(after=1)
def test_check_finds_it_before_a_model_is_loaded(what):
    text, expected = BROKEN[what]
    with pytest.raises(UserError) as caught:
        check(text)
    assert re.search(expected, str(caught.value)), caught.value
    assert "on_error" not in str(caught.value)  # each is a bug of the configuration or of a reward


def test_the_same_configuration_without_a_mistake_passes():
    assert "accuracy: right at 1" in check(config())


@pytest.mark.parametrize("what", ["numeric_answer: gold", "words for numbers", "blank answers"])
def test_train_says_the_same_before_a_model_is_loaded(what):
    text, _ = BROKEN[what]
    Path("run.yaml").write_text(text)
    with pytest.raises(UserError) as checked:
        check(text)
    with pytest.raises(UserError) as trained:
        groupwise.train("run.yaml", quiet=True)
    assert str(trained.value) == str(checked.value)


def test_check_shows_the_prompt_what_rewards_give_and_which_is_the_accuracy():
    own = [{"name": name} for name in ("think_format", "my_rewards:asked")]
    shown = check(
        config(
            prompts={**DATASET, "path": "mixed.jsonl"},
            rewards=[*own, {"name": "numeric_answer", "extract": "tag"}, "exact_answer"],
        )
    )
    assert "  | 0 + 1 =[what the model writes]<|end|>" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["numeric_answer", "0", "1", "accuracy:", "right", "at", "1"] in lines
    assert ["think_format", "0", "0"] in lines
    assert ["asked", "1", "1"] in lines  # it reads the prompt's column by its own name, too
    assert "the right answer to the first prompt: '<answer>1</answer>'" in shown
    assert (
        "note: accuracy is that of reward 'numeric_answer', the first of 2 that tell right from "
        "wrong ('numeric_answer', 'exact_answer'); evaluation.accuracy names another" in shown
    )
    assert (
        "does not apply to 1 of the first 21 prompts, from which it learns nothing: expected a "
        "number in the column 'answer', found 'many'; `exact_answer` compares words (prompts, row "
        "20)" in shown
    )
