"""`groupwise init` writes configurations that `groupwise check` accepts."""

import json
import struct
from pathlib import Path

import pytest
import yaml
from tests.command_line import call

from groupwise import registry as plugins
from groupwise.kit.draft import Columns, Draft
from groupwise.kit.errors import UserError
from groupwise_commands.draft import Choice, draft, drafts, shown, tasks

ROOT = Path(__file__).parents[2]
BASE = ROOT / "examples" / "arithmetic" / "base"
PAINTER = ROOT / "examples" / "shapes" / "base"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"Question": f"1 + {n}", "solution": str(n + 1), "topic": "sums"} for n in range(40)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", BASE, "--task", "reasoning_gym:chain_sum"),
        ("--model", BASE, "--dataset", "sums.jsonl"),
        ("--image", PAINTER, "--dataset", ROOT / "examples" / "glyphs" / "prompts.jsonl"),
    ],
    ids=["reasoning_gym", "dataset", "image"],
)
@pytest.mark.slow(after=1)
def test_the_written_configuration_passes_check(
    folder: Path, arguments: tuple[object, ...]
) -> None:
    result = call("init", "conf/run.yaml", *arguments)
    assert result.exit_code == 0, result.output
    assert "groupwise check conf/run.yaml" in result.stdout
    result = call("check", "conf/run.yaml")
    assert result.exit_code == 0, result.output


def test_the_columns_of_a_dataset_determine_the_reward(folder: Path) -> None:
    assert call("init", "run.yaml", "--model", BASE, "--dataset", "sums.jsonl").exit_code == 0
    config = yaml.safe_load(Path("run.yaml").read_text("utf-8"))
    assert [(r["name"], r["gold"]) for r in config["rewards"]] == [("numeric_answer", "solution")]
    assert config["prompts"]["prompt"] == "Question"
    assert config["policy"]["max_new_tokens"] == 256  # of 512 positions


@pytest.mark.parametrize(
    ("answers", "task"),
    [
        (["7", "-1,234.5", "so it is\n#### 18"], "numbers"),
        (["7", "3/4", r"\frac{1}{2}", "x^2"], "math"),
        (["7", "Paris"], "words"),
    ],
)
def test_the_task_is_inferred_from_the_answers(answers: list[str], task: str) -> None:
    names = ["prompt", "answer"]
    data = Columns(path="", prompt="prompt", answer="answer", names=names, answers=answers)
    assert drafts()["model"].task_of(data) == task


@pytest.mark.parametrize(
    ("answers", "rules"),
    [
        (["7", r"\frac{3}{4}", "3/4", r"\text{Friday}", "12 \\text{ cm}"], "strict"),
        ([r"x^2+1", r"\frac{n(n+1)}{2}", "7"], "any_form"),
        ([], "strict"),
    ],
)
def test_the_rules_of_math_follow_from_gold(answers: list[str], rules: str) -> None:
    data = Columns(path="", prompt="prompt", answer="answer", answers=answers)
    assert drafts()["model"].data_settings(data) == {"rules": rules}


def test_the_only_column_of_a_file_has_the_prompts(folder: Path) -> None:
    (folder / "train.txt").write_text("a cat\ntwo dogs\n", "utf-8")
    result = call("init", "run.yaml", "--image", "Qwen/Qwen-Image", "--dataset", "train.txt")
    assert result.exit_code == 0, result.output
    assert "  prompt: text  " in (folder / "run.yaml").read_text("utf-8")


def test_answers_that_are_json_name_the_recipe(folder: Path) -> None:
    rows = [{"prompt": "p", "answer": {"total": n}} for n in range(3)]
    (folder / "json.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    result = call("init", "run.yaml", "--model", BASE, "--dataset", "json.jsonl")
    assert result.exit_code == 2
    assert "docs/recipes/json.md has a reward" in " ".join(result.stderr.split())
    assert (ROOT / "docs" / "recipes" / "json.md").exists()


def metadata(**values: int | str) -> bytes:
    """A GGUF file's beginning, as its format is specified: magic, version, counts, key and value
    pairs, whose types are 4 (uint32) and 8 (string)."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, 0, len(values))]
    for key, value in values.items():
        name = key.replace("__", ".").encode()
        parts += [struct.pack("<Q", len(name)), name]
        if isinstance(value, int):
            parts.append(struct.pack("<II", 4, value))
        else:
            parts.append(struct.pack("<IQ", 8, len(value)) + value.encode())
    return b"".join(parts)


@pytest.mark.parametrize("chat", [True, False])
def test_a_folder_with_a_gguf_file_names_it(folder: Path, chat: bool) -> None:
    template = {"tokenizer__chat_template": "{{ messages }}"} if chat else {}
    (folder / "small").mkdir()
    content = metadata(general__architecture="llama", llama__context_length=600, **template)
    (folder / "small" / "model-q8.gguf").write_bytes(content + bytes(99))
    (folder / "small" / "model-q2.gguf").write_bytes(content)  # fewer bits, so fewer bytes
    kind = drafts()["model"]
    choice = Choice(model="small", task="math", dataset=None, prompt=None, answer=None)
    written = yaml.safe_load(draft(kind, choice, Path("run.yaml")))
    assert written["policy"]["loading"] == {"gguf_file": "model-q8.gguf"}
    assert written["policy"]["max_new_tokens"] == 300
    assert written["prompts"]["chat"] == chat
    with pytest.raises(UserError, match="name the folder with the file, small"):
        kind.settings("small/model-q8.gguf")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("kind", "model"), [("model", BASE), ("image", PAINTER)])
def test_a_reward_of_ones_own_takes_the_place_of_a_task(
    folder: Path, kind: str, model: Path
) -> None:
    Path("own.py").write_text("def one(completions, topic):\n    return [1.0 for _ in topic]\n")
    chosen = ("--dataset", "sums.jsonl", "--reward", "own:one")
    result = call("init", "run.yaml", f"--{kind}", model, *chosen)
    assert result.exit_code == 0, result.output
    config = yaml.safe_load(Path("run.yaml").read_text("utf-8"))
    assert config["rewards"] == [{"name": "own:one"}]
    assert config["prompts"]["prompt"] == "Question"
    assert call("check", "run.yaml").exit_code == 0


@pytest.mark.parametrize("name", ["model", "image"])
def test_every_task_has_a_complete_template(folder: Path, name: str) -> None:
    """Each task is written with a dataset of the hub, which is not read."""
    kind = drafts()[name]
    for task in tasks(kind):
        arguments = ["--task", shown(kind, task).replace("TASK", "chain_sum")]
        if task in ("words", "writing"):  # those without prompts of their own
            arguments += ["--dataset", "some/data"]
        result = call("init", f"{task}.yaml", f"--{name}", "some/model", *arguments)
        assert result.exit_code == 0, result.output
        text = Path(f"{task}.yaml").read_text("utf-8")
        assert "$" not in text
        commented = [line for line in text.splitlines() if " # " in line and line[0] != "#"]
        for line in commented:
            key, _, _ = line.partition(" # ")
            assert line.index("# ") == max(34, len(key.rstrip()) + 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of these: --model, a language model; --video, a video model; --image"),
        (["--model", "m", "--image", "m"], "give one of these: --model"),
        (["--model", "m"], "give --dataset FILE, or a --task that has prompts of its own: math"),
        (["--model", "m", "--task", "maths"], "--task maths: unknown, did you mean 'math'?"),
        (["--image", "m", "--task", "math"], "for an image model there are preference, writing"),
        (["--model", "m", "--task", "reasoning_gym"], "name one of its tasks, as reasoning_gym:"),
        (["--model", "m", "--task", "reasoning_gym:chain_smu"], "chain_sum"),
        (["--model", "m", "--dataset", "nowhere.csv"], "nowhere.csv: no such file"),
        (["--image", "m", "--dataset", "plan.jsonl"], "no such file, did you mean 'plain.jsonl'?"),
        (["--model", "m", "--dataset", "some/data"], "some/data: no such file; of a dataset"),
        (["--image", "m", "--reward", "aesthetic"], "--reward needs the prompts, by --dataset"),
        (["--model", "m", "--task", "math", "--reward", "a:b"], "--reward is instead of --task"),
        (
            ["--model", str(BASE), "--dataset", "sums.jsonl", "--reward", "numeric_answer"],
            "needs the column 'answer'",
        ),
        (
            *(["--model", "m", "--dataset", "sums.jsonl", "--reward", "a:b", "--answer", "topic"],),
            "--answer is for a --task",
        ),
        (["--model", "m", "--dataset", "sums.jsonl", "--prompt", "text"], "has no column 'text'"),
        (["--model", "m", "--dataset", "plain.jsonl"], "no column of answers"),
    ],
)
def test_mistakes_are_refused_and_nothing_is_written(
    folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "plain.jsonl").write_text('{"prompt": "a"}', "utf-8")
    result = call("init", "run.yaml", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("run.yaml").exists()


def test_the_help_lists_the_models_and_tasks_of_all_plugins() -> None:
    text = " ".join(call("init", "--help").stdout.replace("│", " ").split())
    assert "train a language model: hub name or folder" in text
    assert "train an image model: hub name or folder" in text
    assert (
        "of --model math, numbers, reasoning_gym:TASK, words; of --video preference; of --image"
        in text
    )


def test_a_plugin_brings_its_own_draft(folder: Path) -> None:
    (folder / "drafts" / "tasks").mkdir(parents=True)
    (folder / "drafts" / "data.yaml").write_text("steer: {path: here.csv}", "utf-8")
    (folder / "drafts" / "tasks" / "steer.yaml").write_text("prompts:\n$data\n", "utf-8")
    run = "# $about\npolicy: {name: rover, model: $model, wheels: $wheels}\n$task"
    (folder / "drafts" / "run.yaml").write_text(run, "utf-8")

    class RoverDraft(Draft):
        model = "a rover"
        templates = folder / "drafts"

        def settings(self, model: str) -> dict[str, int]:
            return {"wheels": len(model)}

        def task_of(self, data: Columns) -> str:
            return "steer"

    choice = Choice(model="mars", task="steer", dataset=None, prompt=None, answer=None)
    assert draft(RoverDraft(), choice, Path("run.yaml")) == (
        "# mars: made by `groupwise init`.\n"
        "policy: {name: rover, model: mars, wheels: 4}\n"
        "prompts:\n  name: dataset\n  path: here.csv                  "
        "# a file, a folder or a hub name\n"
    )


def test_a_folder_as_the_target_is_refused(folder: Path) -> None:
    result = call("init", ".", "--model", "some/model", "--task", "math", "--force")
    assert result.exit_code == 2
    assert ". is a folder: name a file in it, as run.yaml" in result.stderr


def test_a_file_is_replaced_only_with_force(folder: Path) -> None:
    Path("run.yaml").write_text("mine", "utf-8")
    command = ("init", "run.yaml", "--model", "some/model", "--task", "math")
    result = call(*command)
    assert result.exit_code == 2
    assert "run.yaml is there already; --force replaces it" in result.stderr
    assert Path("run.yaml").read_text("utf-8") == "mine"
    assert call(*command, "--force").exit_code == 0
    assert Path("run.yaml").read_text("utf-8") != "mine"


def test_all_missing_extras_are_named_in_one_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        plugins, "missing_requirements", lambda entry: ["it"] if entry.extra else []
    )
    result = call("init", "run.yaml", "--model", "some/model", "--task", "math")
    assert result.exit_code == 2
    assert "pip install 'groupwise[data,llm,math]'" in result.stderr
    assert not Path("run.yaml").exists()
