"""The configuration: reading, overrides, derived values, and an error for each mistake."""

import json
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from groupwise import RunResult, train
from groupwise import registry as plugins
from groupwise.config.load import (
    LoadedConfig,
    dump,
    load_config,
    sections,
)
from groupwise.kit import secrets
from groupwise.kit.errors import UserError
from groupwise.kit.options import PathOrName
from groupwise.storage.run_info import settings_of

BASE = """\
policy: toy
prompts: {name: rows, rows: [{prompt: a}]}
rewards:
  - exact
  - name: short
    weight: 0.5
"""
DATA = {"policy": "toy", "prompts": "rows", "rewards": ["exact"]}


def load(folder: Path, text: str, *overrides: str) -> LoadedConfig:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def mistake(folder: Path, text: str, *overrides: str) -> str:
    """The error message, without the path of the folder."""
    with pytest.raises(UserError) as caught:
        load(folder, text, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_shorthands_and_defaults_of_a_configuration(tmp_path: Path) -> None:
    loaded = load(tmp_path, BASE)
    config = loaded.config
    assert (config.policy.name, config.policy.options) == ("toy", {})
    assert config.prompts.options == {"rows": [{"prompt": "a"}]}
    assert [(r.name, r.weight) for r in config.rewards] == [("exact", None), ("short", 0.5)]
    assert config.algorithm.name == "grpo"
    assert config.train == load_config(DATA).config.train
    assert config.output == Path("runs/run")
    assert loaded.folder == tmp_path
    assert loaded.origin.source == str(tmp_path / "run.yaml")
    assert loaded.origin.lines[("rewards", 1, "weight")] == 6


def test_output_is_named_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sums.yaml"
    path.write_text(BASE, encoding="utf-8")
    assert load_config(path).config.output == Path("runs/sums")
    assert load_config(path, folder=Path("elsewhere")).folder == Path("elsewhere")


def test_an_option_may_be_called_options(tmp_path: Path) -> None:
    loaded = load(tmp_path, BASE, "policy.options={a: 1}")
    assert loaded.config.policy.options == {"options": {"a": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.5E3", 1500.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("010", 10),
        ("0x10", 16),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("'1e-4'", "1e-4"),
        ("1_000", "1_000"),
    ],
)
def test_scalars_are_parsed_by_yaml_1_2(tmp_path: Path, text: str, value: Any) -> None:
    parsed = load(tmp_path, BASE, f"policy.x={text}").config.policy.options["x"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_numbers_and_booleans_are_converted_by_type(tmp_path: Path) -> None:
    text = BASE + "train: {learning_rate: 1e-4, steps: 1e2}\nevaluation: {greedy: no}\n"
    config = load(tmp_path, text).config
    assert config.train.learning_rate == 1e-4
    assert config.train.steps == 100
    assert config.evaluation.greedy is False


def test_keys_are_always_text(tmp_path: Path) -> None:
    config = load(tmp_path, BASE + "callbacks: [{name: c, on: 1, 2: x}]\n").config
    assert config.callbacks[0].options == {"on": 1, "2": "x"}


def test_empty_sections_have_default_values(tmp_path: Path) -> None:
    config = load(tmp_path, BASE + "train:\n#  steps: 5\ncallbacks:\n").config
    assert config.train == load_config(DATA).config.train
    assert config.callbacks == []


def test_anchors_and_merge_keys_are_supported(tmp_path: Path) -> None:
    text = BASE + "callbacks:\n  - &one {name: a, x: 1, y: 1}\n  - {<<: *one, name: b, x: 2}\n"
    callbacks = load(tmp_path, text).config.callbacks
    assert callbacks[1].name == "b"
    assert callbacks[1].options == {"x": 2, "y": 1}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("lerning: 1", "7: lerning: unknown key; known are algorithm, callbacks, environment, "),
        ("trian: {}", "7: trian: unknown key, did you mean 'train'?"),
        (
            "train:\n  lerning_rate: 1",
            "8: train.lerning_rate: unknown key, did you mean 'learning_rate'?",
        ),
        ("train: {steps: many}", "7: train.steps: expected a whole number, found 'many'"),
        ("train: {steps: 1.5}", "7: train.steps: expected a whole number, found 1.5"),
        ("seed: 4294967296", "7: seed: expected less than 4294967296, found 4294967296"),
        ("train: {steps: -1}", "7: train.steps: expected at least 0, found -1"),
        ("train: {minutes: 0}", "7: train.minutes: expected more than 0, found 0"),
        ("train: {minutes: x}", "7: train.minutes: expected a number, found 'x'"),
        (
            "train: {weight_decay: .nan}",
            "7: train.weight_decay: expected a finite number, found nan",
        ),
        ("train: {betas: [0.9, a]}", "7: train.betas.1: expected a number, found 'a'"),
        ("train: {betas: 0.9}", "7: train.betas: expected a list, found 0.9"),
        ("train: {betas: [0.9]}", "7: train.betas.1: missing, it has no default"),
        ("train: 5", "7: train: expected a section of keys, found 5"),
        ("train:\n\n  group_size: 0", "9: train.group_size: expected at least 1, found 0"),
        (
            "train:\n  groups_per_step: 8\n  updates_per_rollout: 3",
            "9: train.updates_per_rollout: 3 updates cannot share 8 groups evenly",
        ),
        (
            "train:\n  shard: true\n  optimizer: adamw_8bit",
            "9: train.optimizer: adamw_8bit does not support sharded weights; set",
        ),
        (
            "train: {schedule: cosin}",
            "7: train.schedule: expected 'constant', 'linear' or 'cosine', found 'cosin', did you",
        ),
        ("callbacks: bell", "7: callbacks: expected a list, found 'bell'"),
        ("callbacks: [{x: 1}]", "7: callbacks.0.name: missing, it has no default"),
        ("callbacks:\n  - 5", "8: callbacks.0: expected a section of keys, found 5"),
        ("evaluation: {greedy: maybe}", "7: evaluation.greedy: expected true or false, found 'may"),
        ("evaluation: {source: {held: 1}}", "7: evaluation.source.name: missing"),
        ("seed: null\nseed: 1", "8: seed: already set in line 7"),
        ("train:\n  steps: 1\n  steps: 2", "9: train.steps: already set in line 8"),
        ("train: {steps: 1", "8: a { is not closed, or a comma is missing"),
        ("train:\n\tsteps: 1", "8: a tab; indent with spaces"),
        ("? [a]\n: 1", "7: a key must be text"),
        ("callbacks: [!thing {name: a}]", "7: '!thing': a text that begins with ! needs"),
        ("seed: !thing 1", "7: '!thing': a text that begins with ! needs"),
        ("seed: *nowhere", "7: a text that begins with * needs quotes"),
    ],
)
def test_mistakes_name_line_and_key(tmp_path: Path, lines: str, message: str) -> None:
    assert mistake(tmp_path, f"{BASE}{lines}\n").startswith(f"run.yaml, line {message}")


def test_several_mistakes_are_listed_in_order_of_lines(tmp_path: Path) -> None:
    error = mistake(tmp_path, BASE + "train: {stesp: 1, steps: x}\nnothing: 1\nseed: y\n")
    assert [line.split(":")[0] for line in error.splitlines()] == [
        f"run.yaml, line {number}" for number in (7, 7, 8, 9)
    ]


def test_a_misspelt_choice_gets_a_suggestion(tmp_path: Path) -> None:
    error = mistake(tmp_path, BASE + "train: {schedule: cosin}\n")
    assert error.endswith(", found 'cosin', did you mean 'cosine'?")


def test_missing_sections_are_named(tmp_path: Path) -> None:
    assert mistake(tmp_path, "policy: toy\nrewards: []\n") == (
        "run.yaml, line 1: prompts: missing, it has no default\n"
        "run.yaml, line 2: rewards: expected at least 1 of them, found a list of 0"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "run.yaml: the file is empty"),
        ("# only a comment\n", "run.yaml: the file is empty"),
        ("- a\n", "run.yaml, line 1: expected a section of keys, found a list of 1"),
        ("a: &x [*x]\n", "run.yaml, line 1: nested too deeply, or inside itself"),
        ("a: 1\n---\nb: 1\n", "run.yaml, line 2: but found another document"),
    ],
)
def test_files_without_a_configuration_are_refused(tmp_path: Path, text: str, message: str) -> None:
    assert mistake(tmp_path, text).startswith(message)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.yaml: no such file"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(UserError, match="expected a YAML file, found a folder"):
        load_config(tmp_path)
    (tmp_path / "bad.yaml").write_bytes(b"policy: \xff")
    with pytest.raises(UserError, match="expected UTF-8 text, byte 8 is not"):
        load_config(tmp_path / "bad.yaml")


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BASE, encoding="utf-8-sig")
    assert load_config(tmp_path / "run.yaml").config.policy.name == "toy"


def test_overrides_replace_and_add_values(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        BASE,
        "train.steps=3",
        "train.learning_rate=1e-5",
        "policy.model=some/where=else",
        "rewards.0.weight=2",
        "rewards.1=other",
        "rewards.2={name: new, label: n}",
        "evaluation.accuracy=",
    ).config
    assert config.train.steps == 3
    assert config.train.learning_rate == 1e-5
    assert config.policy.name == "toy"
    assert config.policy.options == {"model": "some/where=else"}
    assert [(r.name, r.weight) for r in config.rewards] == [
        ("exact", 2.0),
        ("other", None),
        ("new", None),
    ]
    assert config.evaluation.accuracy is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", "expected key=value, found no '='"),
        ("=3", "expected a dotted key before '=', found ''"),
        ("train..steps=3", "expected a dotted key before '=', found 'train..steps'"),
        ("train.steps=[1", "line 1: "),
        ("train.stesp=3", "train.stesp: unknown key, did you mean 'steps'?"),
        ("trian.steps=3", "trian: unknown key, did you mean 'train'?"),
        ("train.steps=x", "train.steps: expected a whole number, found 'x'"),
        ("train={steps: x}", "train.steps: expected a whole number, found 'x'"),
        ("rewards.5.weight=1", "rewards is a list of 2: expected a number from 0 to 2, found 5"),
        ("rewards.first=1", "rewards is a list of 2: expected a number from 0 to 2, found 'first'"),
        ("rewards.1.weight.x=1", "rewards.1.weight is 0.5, which has no keys"),
    ],
)
def test_mistakes_in_overrides_name_the_override(
    tmp_path: Path, override: str, message: str
) -> None:
    error = mistake(tmp_path, BASE, override)
    assert error.startswith(
        (f"override {override!r}: {message}", f"override {override!r}, {message}")
    )


def test_an_override_replaces_a_wrong_value_of_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, BASE + "train: {steps: x}\n", "train.steps=2").config.train.steps == 2


def test_a_mistake_in_the_file_names_its_line_even_with_an_override(tmp_path: Path) -> None:
    error = mistake(tmp_path, BASE + "train:\n  stesp: 1\n", "train.steps=2")
    assert error.startswith("run.yaml, line 8: train.stesp")


def test_a_configuration_may_be_a_mapping(tmp_path: Path) -> None:
    loaded = load_config(DATA, {"train.steps": 2, "policy.size": 3}, folder=tmp_path)
    assert loaded.config.train.steps == 2
    assert loaded.config.policy.options == {"size": 3}
    assert loaded.folder == tmp_path
    assert DATA["policy"] == "toy"
    with pytest.raises(UserError, match=r"^configuration: train\.stesp: unknown key, did you mean"):
        load_config({**DATA, "train": {"stesp": 1}})
    with pytest.raises(UserError, match=r"^override 'train\.stesp=1': train\.stesp: unknown key"):
        load_config(DATA, {"train.stesp": 1})


def test_a_section_in_python_replaces_keys_or_names_another_plugin(tmp_path: Path) -> None:
    text = BASE + "train: {epochs: 2}\nalgorithm: {beta: 0.1}\n"
    sections = {"train": {"steps": 2}, "algorithm": {"name": "grpo", "scale": "batch"}}
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    loaded = load_config(path, {**sections, "policy": {"size": 3}, "rewards": ["other"]})
    assert (loaded.config.train.steps, loaded.config.train.epochs) == (2, 2)
    assert loaded.config.algorithm.options == {"beta": 0.1, "scale": "batch"}
    assert (loaded.config.policy.name, loaded.config.policy.options) == ("toy", {"size": 3})
    assert [section.name for section in loaded.config.rewards] == ["other"]
    assert loaded.origin.where(("train", "epochs")) == f"{path}, line 7"
    assert loaded.origin.where(("train", "steps")) == "override 'train.steps=2'"
    other = load_config(path, {"algorithm": {"name": "dapo"}}).config.algorithm
    assert (other.name, other.options) == ("dapo", {})
    with pytest.raises(UserError, match=r"^override 'rewards': rewards\.0\.name: missing"):
        load_config(path, {"rewards": [{"size": 3}]})


def test_objects_stand_in_place_of_names_in_a_mapping() -> None:
    data = {"policy": {"name": Target, "size": 2}, "prompts": ROWS, "rewards": exact}
    loaded = load_config(data, {"evaluation": {"source": ROWS[:2]}, "prompts.held_out": 0.2})
    assert (
        loaded.config.policy
        == load_config({**DATA, "policy": {"name": "Target", "size": 2}}).config.policy
    )
    assert (loaded.config.rewards[0].name, loaded.config.prompts.held_out) == ("exact", 0.2)
    assert loaded.objects == {
        ("policy",): Target,
        ("prompts",): ROWS,
        ("rewards", 0): exact,
        ("evaluation", "source"): ROWS[:2],
    }
    assert ("rewards", 0) not in load_config(data, {"rewards": ["other"]}).objects


def test_several_players_in_a_file_can_be_overridden_in_python(tmp_path: Path) -> None:
    players = "players: [{label: a, policy: x}, {label: b, policy: y}]\nenvironment: pool\n"
    path = tmp_path / "run.yaml"
    path.write_text(BASE.replace("policy: toy\n", players), encoding="utf-8")
    with pytest.raises(UserError, match=r"players\.0\.policy\.name: unknown policy 'x'"):
        train(path, train={"steps": 1}, rewards=[exact])


def test_sections_do_not_change_after_loading() -> None:
    config = load_config(DATA).config
    with pytest.raises(ValueError, match="frozen"):
        config.train.steps = 3  # type: ignore[misc]


def test_a_dump_loads_as_an_equal_configuration(tmp_path: Path) -> None:
    texts = [
        "1e-4",
        "yes",
        "010",
        "1:30",
        "null",
        "",
        " a\nb ",
        "é",
        "#",
        "true",
        "<<",
        "2024-01-01",
    ]
    options = {"texts": texts, "x": 1e-7, "big": 10**20, "n": None, "deep": {"a": [{"b": 1}]}}
    config = load_config(
        {
            **DATA,
            "policy": {"name": "toy", **options},
            "train": {"max_grad_norm": float("inf"), "betas": [0.5, 0.6]},
            "evaluation": {"source": "rows"},
            "callbacks": ["bell"],
        }
    ).config
    loaded = load(tmp_path, dump(config)).config
    assert loaded == config
    assert loaded.policy.options == options


def test_a_dump_writes_other_types_as_text() -> None:
    config = load_config({**DATA, "policy": {"name": "toy", "path": Path("a/b")}}).config
    assert "path: a/b" in dump(config)


def test_sections_are_equal_to_a_parsed_dump() -> None:
    options = {
        "path": Path("a/b"),
        "bytes": b"x",
        "set": {"b", "a"},
        "pair": (1, 1e-7, "1:30"),
        1: {},
    }
    options |= {
        "day": date(2024, 1, 2),
        "none": None,
        "yes": True,
        "other": range(3),
        "deep": [[dict(options)]],
    }
    config = load_config({**DATA, "policy": {"name": "toy", "options": options}}).config
    assert sections(config) == settings_of(dump(config))
    assert sections(config)["policy"]["options"]["set"] == ["a", "b"]


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rank: int = 1


class Target:
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        model: PathOrName = "none"
        size: int = Field(1, ge=1)
        inner: Inner | None = None
        several: str | list[str] = "x"

    def __init__(self, config: Config) -> None:
        self.rows = ROWS[: config.size]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return self.rows[index]


class Plain(Target):
    Config = None  # type: ignore[assignment]

    def __init__(self, size: int, other: int = 2) -> None:
        self.rows = ROWS[: size * other]


def made(size: int = 1) -> Sequence[dict[str, Any]]:
    return ROWS[:size]


def exact(prompts: Any, completions: Any, answer: Any, tolerance: float = 0, **columns: Any) -> Any:
    JUDGED.extend(prompts)
    return [tolerance] * len(prompts)


JUDGED: list[str] = []
ROWS = [{"prompt": f"question {number}", "id": number, "answer": ""} for number in range(8)]


def run(folder: Path, prompts: str, reward: str = "", **parts: Any) -> RunResult:
    """A run of one step whose prompts and reward are named by their places in this module."""
    file = folder / "run.yaml"
    file.write_text(
        f"prompts:\n  name: {__name__}:{prompts}\n"
        f"policy: none\n"
        f"rewards: [{{name: '{__name__}:exact'{reward}}}]\n"
        f"output: {folder / 'run'}\n"
        f"train: {{steps: 1, groups_per_step: 8, group_size: 2}}\n"
        f"evaluation: {{prompts: 0}}\n",
        encoding="utf-8",
    )
    return train(file, overwrite=True, quiet=True, **parts)


@pytest.mark.parametrize(
    ("prompts", "rows"),
    [("Target\n  size: 4", 4), ("Plain\n  size: 3", 6), ("made\n  size: 2", 2), ("ROWS", 8)],
)
def test_what_a_name_stands_for_is_built_with_its_options(
    tmp_path: Path, lab: Any, prompts: str, rows: int
) -> None:
    JUDGED.clear()
    result = run(tmp_path, f"{prompts}\n  held_out: 0", ", tolerance: 2.5", policy=lab.Tabular())
    metrics = (result.folder / "metrics.jsonl").read_text("utf-8").splitlines()
    assert json.loads(metrics[0])["reward"] == 2.5
    assert len({*JUDGED}) == rows


@pytest.mark.slow
def test_a_reward_is_built_in_its_process_without_the_objects_of_the_run(
    tmp_path: Path, lab: Any
) -> None:
    policy = lab.Tabular()
    policy.unpicklable = lambda: None
    result = run(tmp_path, "ROWS\n  held_out: 0", ", tolerance: 2.5, isolate: true", policy=policy)
    metrics = (result.folder / "metrics.jsonl").read_text("utf-8").splitlines()
    assert json.loads(metrics[0])["reward"] == 2.5


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("Target\n  sise: 3", "3: prompts.sise: unknown key, did you mean 'size'?"),
        ("Target\n  size: 0", "3: prompts.size: expected at least 1, found 0"),
        (
            "Target\n  inner:\n    rnak: 1",
            "4: prompts.inner.rnak: unknown key, did you mean 'rank'?",
        ),
        ("Target\n  inner: 3", "3: prompts.inner: expected a section of keys, found 3"),
        ("Target\n  several: 3", "3: prompts.several: expected text, found 3"),
        ("Target\n  several:\n    - a\n    - 3", "5: prompts.several.1: expected text, found 3"),
        ("Plain", "1: prompts.size: missing, it has no default"),
        ("Plain\n  size: 1\n  sise: 3", "4: prompts.sise: unknown key, did you mean 'size'?"),
        ("Plain\n  size: 1\n  shufle: 1", "4: prompts.shufle: unknown key, did you mean 'shuffle'"),
        (
            "ROWS\n  a: 1",
            f"1: prompts: '{__name__}:ROWS' is an object already and takes no options",
        ),
    ],
)
def test_mistakes_in_options_name_the_line(tmp_path: Path, prompts: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, prompts)
    assert f"run.yaml, line {message}" in str(caught.value)


def test_lines_are_those_of_the_file_with_objects_for_some_names(tmp_path: Path, lab: Any) -> None:
    with pytest.raises(UserError, match=r"run\.yaml, line 3: prompts\.sise: unknown key, did you"):
        run(tmp_path, "Target\n  sise: 3", policy=lab.Tabular())


def test_a_reward_takes_no_options_for_what_the_run_passes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rewards\.0\.wieght: unknown key, did you mean 'weight'"):
        run(tmp_path, "ROWS", ", wieght: 2")
    with pytest.raises(UserError, match=r"rewards\.0\.completions: unknown key"):
        run(tmp_path, "ROWS", ", completions: 2")


def test_paths_that_exist_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name, expected in {
        "base": str(tmp_path / "base"),
        "org/name": "org/name",
        str(tmp_path / "base"): str(tmp_path / "base"),
        "": "",
        "a" * 5000: "a" * 5000,
    }.items():
        context = {"folder": tmp_path, "begun_in": None}
        assert Target.Config.model_validate({"model": name}, context=context).model == expected
    assert Target.Config(model="base").model == "base"


def test_configurations_on_the_page_of_algorithms_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(block.split("```")[0]) for block in page.split("```yaml\n")[1:]]
    assert len(examples) == 7
    for section in examples:
        options = section["algorithm"]
        options = {"name": options} if isinstance(options, str) else options
        kind = plugins.installed().load("algorithms", options.pop("name"))
        kind(kind.Config(**options))


def test_options_of_plugins_other_than_secret_str_are_not_masked() -> None:
    def names(model: type[BaseModel]) -> Iterator[str]:
        for name, info in model.model_fields.items():
            if SecretStr not in (info.annotation, *get_args(info.annotation)):
                yield name
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                yield from names(info.annotation)

    registry = plugins.installed()
    targets = [registry.load(entry.kind, entry.name) for entry in registry.entries]
    options = [name for t in targets if hasattr(t, "Config") for name in names(t.Config)]
    assert "max_new_tokens" in options
    assert not [name for name in options if secrets.is_secret(name)]
