"""The configuration: reading, overrides, derived values, and an error for each mistake."""

from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from groupwise import registry as plugins
from groupwise import secrets
from groupwise.cli import algorithms, manual
from groupwise.config import yaml_lines
from groupwise.config.load import (
    LoadedConfig,
    dump,
    load_config,
    parse_config,
    sections,
)
from groupwise.config.sections import RunConfig
from groupwise.config.train import TrainSection
from groupwise.errors import UserError
from groupwise.options import PathOrName
from groupwise.plugins.build import build
from groupwise.plugins.targets import has_config

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
    assert config.train == TrainSection()
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
    assert config.train == TrainSection()
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
        ("train: {steps: 1", "8: expected ',' or '}', but got '<stream end>'"),
        ("train:\n\tsteps: 1", "8: found character '\\t' that cannot start any token"),
        ("? [a]\n: 1", "7: a key must be text"),
        ("callbacks: [!thing {name: a}]", "7: unknown tag '!thing'"),
        ("seed: !thing 1", "7: unknown tag '!thing'"),
        ("seed: *nowhere", "7: undefined alias; a text th"),
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
    loaded = parse_config(DATA, {"train.steps": 2, "policy.size": 3}, folder=tmp_path)
    assert loaded.config.train.steps == 2
    assert loaded.config.policy.options == {"size": 3}
    assert loaded.folder == tmp_path
    assert DATA["policy"] == "toy"
    with pytest.raises(UserError, match=r"^configuration: train\.stesp: unknown key, did you mean"):
        parse_config({**DATA, "train": {"stesp": 1}})
    with pytest.raises(UserError, match=r"^override 'train\.stesp=1': train\.stesp: unknown key"):
        parse_config(DATA, {"train.stesp": 1})


def test_sections_do_not_change_after_loading() -> None:
    config = parse_config(DATA).config
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
    config = parse_config(
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
    config = parse_config({**DATA, "policy": {"name": "toy", "path": Path("a/b")}}).config
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
    config = parse_config({**DATA, "policy": {"name": "toy", "options": options}}).config
    assert sections(config) == yaml_lines.read(dump(config), "")[0]
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
        self.config = config


class Plain:
    def __init__(self, needed: int, other: int = 2) -> None:
        self.sum = needed + other


def exact(prompts: Any, completions: Any, answer: Any, tolerance: float = 0, **columns: Any) -> Any:
    return [tolerance]


def policy(folder: Path, options: str, target: Any = Target) -> Any:
    loaded = load(folder, BASE.replace("policy: toy\n", f"policy:\n  name: toy\n{options}"))
    section = loaded.config.policy
    return build(loaded, ("policy",), target, section.name, section.options)


def test_a_class_with_a_config_is_built_with_its_options(tmp_path: Path) -> None:
    assert policy(tmp_path, "  size: 3\n  inner: {rank: 2}\n").config.inner.rank == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("  sise: 3\n", "3: policy.sise: unknown key, did you mean 'size'?"),
        ("  size: 0\n", "3: policy.size: expected at least 1, found 0"),
        ("  inner:\n    rnak: 1\n", "4: policy.inner.rnak: unknown key, did you mean 'rank'?"),
        ("  inner: 3\n", "3: policy.inner: expected a section of keys, found 3"),
        ("  several: 3\n", "3: policy.several: expected text, found 3"),
    ],
)
def test_mistakes_in_options_name_the_line(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        policy(tmp_path, options)
    error = str(caught.value).replace(f"{tmp_path}/", "")
    assert error.splitlines()[0] == f"run.yaml, line {message}"


def test_a_plain_class_is_built_with_its_arguments(tmp_path: Path) -> None:
    assert policy(tmp_path, "  needed: 3\n", Plain).sum == 5
    with pytest.raises(UserError, match=r"line 1: policy\.needed: missing"):
        policy(tmp_path, "", Plain)
    with pytest.raises(UserError, match=r"line 3: policy\.neded: unknown key, did you mean 'need"):
        policy(tmp_path, "  neded: 3\n", Plain)


def test_options_of_a_reward_function_are_bound_as_arguments() -> None:
    loaded = parse_config(DATA)
    path = ("rewards", 0)
    assert build(loaded, path, exact, "exact", {}) is exact
    bound = build(loaded, path, exact, "exact", {"tolerance": 2})
    assert isinstance(bound, partial)
    assert bound([], [], answer=[]) == [2]
    with pytest.raises(UserError, match=r"rewards\.0\.wieght: unknown key, did you mean 'weight'"):
        build(loaded, path, exact, "exact", {"wieght": 2})
    with pytest.raises(UserError, match=r"rewards\.0\.completions: unknown key"):
        build(loaded, path, exact, "exact", {"completions": 2})


def test_an_object_takes_no_options_and_is_returned_as_it_is() -> None:
    loaded, rows = parse_config(DATA), [{"prompt": "a"}]
    assert build(loaded, ("prompts",), rows, "mine:rows", {}) is rows
    with pytest.raises(UserError, match="'mine:rows' is an object already and takes no options"):
        build(loaded, ("prompts",), rows, "mine:rows", {"a": 1})


def test_other_functions_are_called_with_their_options() -> None:
    loaded = parse_config(DATA)

    def make(size: int = 1) -> list[int]:
        return [size]

    assert build(loaded, ("prompts",), make, "mine:make", {"size": 2}) == [2]


def test_paths_that_exist_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name, expected in {
        "base": str(tmp_path / "base"),
        "org/name": "org/name",
        str(tmp_path / "base"): str(tmp_path / "base"),
        "''": "",
        "a" * 5000: "a" * 5000,
    }.items():
        assert policy(tmp_path, f"  model: {name}\n").config.model == expected
    assert Target.Config(model="base").model == "base"


def test_every_key_has_a_description_and_the_generated_page_is_up_to_date() -> None:
    for model in manual.TABLES.values():
        assert all(info.description for info in model.model_fields.values()), model
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    text = page.read_text(encoding="utf-8")
    assert manual.rewritten(text) == text, "run: python -m groupwise.cli.manual " + str(page)
    assert set(manual.TABLES.values()) >= {RunConfig, TrainSection}


def test_the_table_of_algorithms_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "algorithms.md"
    text = page.read_text(encoding="utf-8")
    assert algorithms.rewritten(text) == text, f"run: python -m groupwise.cli.algorithms {page}"
    rows = [line.split(" | ") for line in algorithms.table().splitlines()[2:]]
    entries = [entry for entry in plugins.installed().entries if entry.kind == "algorithms"]
    expected = {entry.name for entry in entries if entry.distribution == "groupwise"}
    assert {row[0].split("`")[1] for row in rows} == expected
    for name, summary, formula, averaged, source in rows:
        assert (page.parent / name.split("(")[1].rstrip(")")).exists()
        assert (summary[-1], bool(averaged)) == (".", True)
        assert " = " in formula
        assert "arxiv.org" in source or "`bnpo`" in name  # from TRL, without a paper


def test_configurations_on_the_page_of_algorithms_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(block.split("```")[0]) for block in page.split("```yaml\n")[1:]]
    assert len(examples) == 3
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
    options = [name for t in targets if has_config(t) for name in names(t.Config)]
    assert "max_new_tokens" in options
    assert not [name for name in options if secrets.is_secret(name)]
