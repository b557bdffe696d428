"""`groupwise sample RUN TEXT`: completions of a text by several checkpoints of a run."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import tiny_model
from tests.command_line import call
from transformers import AutoModelForCausalLM, AutoTokenizer

import groupwise
from groupwise.cli.arguments import told_apart
from groupwise.kit.errors import UserError
from groupwise.prompt_source import row_of
from groupwise.run.reopening import SampledReply
from groupwise_commands import answering
from groupwise_commands.sample import step_of
from groupwise_messages.wording import Wording

TEXT = "2 + 2 ="


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps with a checkpoint after each, of which two are kept."""
    home = tmp_path_factory.mktemp("run")
    rows = [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(8)]
    (home / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    groupwise.train(
        policy={"name": "language_model", "model": str(tiny_model.folder()), "max_new_tokens": 6},
        prompts={
            "name": "dataset",
            "path": str(home / "sums.jsonl"),
            "prompt": "question",
            "template": "Q: {prompt}\nA:",
        },
        rewards=[{"name": "repetition", "over": "words"}],
        train={
            "steps": 3,
            "groups_per_step": 2,
            "group_size": 4,
            "learning_rate": 0.3,
            "checkpoint_every": 1,
        },
        evaluation={"prompts": 0},
        output=home / "run",
        quiet=True,
    )
    return home / "run"


def likeliest(folder):
    """What transformers writes after the prompt of the text."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(f"Q: {TEXT}\nA:", return_tensors="pt")
    drawn = model.generate(**ids, max_new_tokens=6, do_sample=False)[0]
    return tokenizer.decode(drawn[ids["input_ids"].shape[1] :])


def test_checkpoints_answer_a_text_one_after_the_other(run):
    result = call("sample", run, TEXT, "--greedy", "--step", "last", "--step", "0", "--step", "2")
    assert result.exit_code == 0, result.output
    text, *sections = result.stdout.split("--- step ")
    assert text == f"Q: {TEXT}\nA:\n"  # as the model reads it
    answers = dict(section.split("\n", 1) for section in sections)
    assert [*answers] == ["0", "2", "3"]
    for step, folder in (("0", tiny_model.folder()), ("3", run / "model")):
        assert answers[step].removesuffix("\n").removesuffix("[ended: length]") in (
            likeliest(folder),
            f"{likeliest(folder)}\n",
        )
    assert not (run / "sampled.jsonl").exists()


def test_completions_of_a_text_follow_the_seed(run):
    def drawn(*options):
        result = call("sample", run, TEXT, "--per-prompt", "3", *options)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert drawn() == drawn() != drawn("--seed", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a text to complete, as `groupwise sample RUN"),
        ([TEXT, "--per-prompt", "-2"], "--per-prompt: expected at least 1 completion, found -2"),
        ([TEXT, "--step", "1"], "no checkpoint of step 1 in "),
        ([TEXT, "--step", "first"], "--step: expected a step, 0 or last, found 'first'"),
        ([TEXT, "--output", "set.jsonl"], "--output is of a set"),
        (["--per-prompt", "2", "--step", "0", "--step", "3"], "give one --step"),
    ],
)
def test_what_cannot_be_drawn_is_refused(run, arguments, message):
    result = call("sample", run, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("key", ["prompt", "question"])
@pytest.mark.slow(after=1)
def test_a_run_of_python_objects_answers_a_text_without_them(tmp_path, chat, key):
    """Its rewards are not needed, and of its prompts only whether they are messages."""

    def short(completions, **_):
        return [-len(str(completion)) for completion in completions]

    def longest(completions, **_):
        return [max(map(len, map(str, completions)))] * len(completions)

    model = shutil.copytree(tiny_model.folder(), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    tokenizer.save_pretrained(model)
    prompts = [
        {"prompt": [{"role": "user", "content": f"{n}"}] if chat else f"{n} + 1 =", "question": n}
        for n in range(8)
    ]
    groupwise.train(
        policy={"name": "language_model", "model": str(model), "max_new_tokens": 4},
        prompts={"name": prompts, "key": key},
        rewards=[short],
        watch=[longest],
        train={"steps": 1, "groups_per_step": 2, "group_size": 4, "checkpoint_every": 1},
        evaluation={"prompts": 1, "source": prompts},
        output=tmp_path / "run",
        quiet=True,
    )
    result = call("sample", tmp_path / "run", TEXT, "--greedy", "--step", "0")
    assert result.exit_code == 0, result.output
    prompt, answer = result.stdout.split("\n", 1)
    assert prompt == TEXT
    assert answer
    refused = call("sample", tmp_path / "run", "--per-prompt", "2")
    assert refused.exit_code == 2
    assert "objects for evaluation.source, prompts, rewards.0, watch.0" in refused.stderr


def test_texts_and_overrides_are_told_apart_by_keys():
    arguments = ["x = 3, y?", "policy.max_new_tokens=3", "seed=4", "steps=5", "2 + 2 ="]
    texts, overrides = told_apart(arguments)
    assert overrides == ["policy.max_new_tokens=3", "seed=4"]
    assert texts == ["x = 3, y?", "steps=5", "2 + 2 ="]
    assert [step_of("last"), step_of("0"), step_of("12")] == [None, 0, 12]


def test_a_text_stands_where_the_prompt_does():
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    message = {"role": "user", "content": "text"}
    assert row_of([{"prompt": "plain"}], "text") == {"prompt": "text"}
    assert row_of([{"prompt": chat}], "text") == {"prompt": [chat[0], message]}
    worded = Wording(template="{question} = ?", chat=True, system="s").of_text("text")
    assert worded["question"] == "text"
    assert worded["prompt"] == [chat[0], {"role": "user", "content": "text = ?"}]
    with pytest.raises(UserError, match="the template is made of one, two, and one text cannot"):
        Wording(template="{one} {two}").of_text("text")


class Painted:
    """An image that has only `save`."""

    def __init__(self, text):
        self.text = text

    def save(self, path):
        Path(path).write_text(self.text)


class Painting:
    """A run that is open, whose model paints what it is told to."""

    state = SimpleNamespace(global_step=3, is_world_process_zero=True)

    def __init__(self, drawn):
        self.drawn = drawn

    def prompt_of(self, text):
        return text

    def replies(self, texts, count, **_):
        reply = SampledReply(completion=Painted(self.drawn), label="", length=1, ended="stop")
        return [[reply] * count for _ in texts]


def test_each_call_saves_its_images_in_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    for drawn in ("first", "second"):
        monkeypatch.setattr(answering, "_checkpoints", lambda *_, d=drawn: [Painting(d)])
        answering.answer(tmp_path, ["a cat"], (), [None], count=2, seed=0, greedy=False)
    files = [Path(word) for word in capsys.readouterr().out.split() if word.endswith(".png")]
    assert len({*files}) == 4
    assert [file.read_text() for file in files] == ["first"] * 2 + ["second"] * 2
