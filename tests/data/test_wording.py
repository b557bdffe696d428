"""Rows to prompts: a template over columns, chat messages, a system message."""

from pathlib import Path

import pytest
import yaml
from tests.command_line import call

from groupwise.kit.errors import UserError
from groupwise.registry import installed
from groupwise_messages.wording import Wording

Dataset = installed().load("prompts", "dataset")
BASES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ("question,context,answer", "2 + 2,,4", '"Who, now?",It is Ann.,Ann')
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def prompts(path, **options):
    source = Dataset(Dataset.Config(path=str(path), **options))
    return [source[number]["prompt"] for number in range(len(source))]


def test_a_template_is_filled_from_columns_and_keeps_other_braces():
    row = {"a": 3, "b": None, "long_name": "{a}"}

    def fill(template):
        return Wording(template=template).worded(row, None)

    assert fill("{a}+{a}|{b}|{long_name}") == "3+3||{a}"
    assert fill(r'\boxed{} {"x": 1} { a } {0} {{a}} {') == r'\boxed{} {"x": 1} { a } {0} {a} {'


def test_a_csv_file_may_have_a_template_a_system_message_and_renamed_columns(table):
    text = "{context} {question}?"
    assert prompts(table, template=text) == [" 2 + 2?", "It is Ann. Who, now??"]
    system = {"role": "system", "content": "Be brief."}
    assert prompts(table, prompt="question", chat=True, system="Be brief.") == [
        [system, {"role": "user", "content": "2 + 2"}],
        [system, {"role": "user", "content": "Who, now?"}],
    ]
    renamed = {"columns": {"question": "problem"}, "template": "{problem} {answer}"}
    assert prompts(table, **renamed) == ["2 + 2 4", "Who, now? Ann"]


def test_a_text_file_has_a_prompt_in_each_line(table):
    path = table.with_name("train.txt")
    path.write_text('a red "cat", asleep\ntwo dogs\n')
    assert prompts(path, prompt="text") == ['a red "cat", asleep', "two dogs"]
    with pytest.raises(UserError, match=r"no column 'prompt' \(it has text\)"):
        prompts(path)


def test_columns_of_the_template_remain_for_rewards(table):
    row = Dataset(Dataset.Config(path=str(table), template="Q: {question}"))[0]
    assert row == {"prompt": "Q: 2 + 2", "question": "2 + 2", "context": None, "answer": "4"}


def test_a_system_message_is_added_only_if_there_is_none():
    messages = [{"role": "system", "content": "Own."}, {"role": "user", "content": "Hi."}]
    wording = Wording(chat=True, system="Be brief.")
    assert wording.worded({}, messages) == messages
    assert wording.worded({}, messages[1:]) == [
        {"role": "system", "content": "Be brief."},
        messages[1],
    ]
    assert len(messages) == 2
    with pytest.raises(UserError, match="'prompt', which holds chat messages"):
        Wording(template="{prompt}").worded({"prompt": messages}, messages)


TEXT = {"name": "language_model", "model": str(BASES / "arithmetic" / "base"), "max_new_tokens": 4}


def check(prompts, *, policy=TEXT):
    config = {
        "policy": policy,
        "prompts": {"name": "dataset", "path": "rows.csv", "held_out": 0, **prompts},
        "rewards": ["length"],
    }
    Path("run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return call("check", "run.yaml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"template": "Q: {qestion}"},
            "'qestion', did you mean 'question'? (there are question, context, answer); for",
        ),
        ({"template": "{q}", "prompt": "question"}, "there are question, context, answer, prompt"),
        ({"prompt": "question", "system": "Hi."}, "prompts.system: `system` needs `chat: true`"),
        ({}, "has no column 'prompt' (it has question, context, answer); name it with `prompt:"),
        ({"prompt": "context", "chat": True}, "prompts, row 0: 'prompt' must be a non-empty"),
    ],
)
def test_mistakes_in_the_configuration_are_named(table, options, message):
    result = check(options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_messages_need_a_model_with_a_chat_template(table, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for file in Path(TEXT["model"]).iterdir():
        if file.name != "chat_template.jinja":
            (model / file.name).symlink_to(file)
    policy = {**TEXT, "model": str(model)}
    result = check({"prompt": "question", "chat": True}, policy=policy)
    assert result.exit_code == 2
    assert "tokenizer has no chat template; use plain text (no `chat: true`" in result.stderr
    assert check({"prompt": "question", "chat": True}).exit_code == 0
