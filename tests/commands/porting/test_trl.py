"""TRL: the table is complete, defaults are TRL's, and the written numbers mean the same."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.command_line import call
from tests.commands.porting.conftest import Ported

from groupwise.algorithms.grpo import GRPO
from groupwise.config.prompts import PromptsSection
from groupwise.config.sections import EvaluationSection
from groupwise.config.train import TrainSection
from groupwise_commands.porting.frameworks import FRAMEWORKS
from groupwise_commands.porting.option import Option, data
from groupwise_llm.settings import Settings

REQUIRED = object()
OPTIONS = {
    name: option
    for group in FRAMEWORKS["trl"].table
    for option in group.options
    for name in option.names
}


def fields(package: str, module: str, *classes: str) -> dict[str, Any]:
    """The fields of dataclasses with their defaults, by the source: to import TRL takes long."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / module).read_text("utf-8"))
    bodies = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    return {
        node.target.id: default(node.value)
        for name in classes
        for node in bodies[name]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if not node.target.id.startswith("_")
    }


def default(node: ast.expr | None) -> Any:
    for keyword in getattr(node, "keywords", ()):
        if keyword.arg == "default":
            node = keyword.value
    try:
        return ast.literal_eval(node) if node is not None else REQUIRED
    except ValueError:
        return REQUIRED


TRAINING = fields("transformers", "training_args.py", "TrainingArguments")
BASE = fields("trl", "trainer/base_config.py", "_BaseConfig")
OWN = fields("trl", "trainer/grpo_config.py", "GRPOConfig")
LAUNCH = {
    **fields("trl", "trainer/model_config.py", "ModelConfig"),
    **fields("trl", "scripts/utils.py", "ScriptArguments", "DatasetMixtureConfig"),
    **fields("trl", "scripts/grpo.py", "GRPOScriptArguments"),
}


def test_the_table_has_every_option_of_trl() -> None:
    """A new field of TRL's fails here, until the table says what it is."""
    assert len(OWN) > 70
    known = {**TRAINING, **BASE, **OWN, **LAUNCH}
    assert sorted(set(known) - set(OPTIONS)) == []
    source = (Path(str(find_spec("trl").origin)).parent / "trainer/grpo_trainer.py").read_text()
    tree = ast.parse(source)
    trainer = next(n for n in tree.body if getattr(n, "name", "") == "GRPOTrainer")
    init = next(n for n in trainer.body if getattr(n, "name", "") == "__init__")
    under = {"model": "model_name_or_path", "peft_config": "use_peft", "self": "output_dir"}
    under |= {"args": "output_dir", "quantization_config": "load_in_4bit"}
    names = {under.get(each.arg, each.arg) for each in init.args.args}
    assert sorted(names - set(OPTIONS)) == []


def test_defaults_in_the_table_are_those_of_trl() -> None:
    theirs = {**TRAINING, **LAUNCH, **BASE, **OWN}
    known = {
        name: option.default
        for name, option in OPTIONS.items()
        if option.default is not None and len(option.names) == 1 and name in theirs
    }
    assert len(known) > 60
    # Both are read from other places there: transformers computes the optimizer's name.
    known = {name: value for name, value in known.items() if name not in ("report_to", "optim")}
    assert {name: theirs[name] for name in known} == known


def ours(key: str) -> Any:
    section, _, name = key.partition(".")
    models = {
        "train": TrainSection,
        "policy": Settings,
        "algorithm": GRPO.Config,
        "evaluation": EvaluationSection,
        "prompts": PromptsSection,
    }
    return models[section].model_fields[name].get_default(call_default_factory=True)


def copies() -> Iterator[Option]:
    """Options of the same meaning that are written only if the file states them."""
    other = {"always", "value", "values", "only", "unless"}
    for group in data("groupwise_commands.porting.trl", "table"):
        for row in group["options"]:
            if "same" in row and other.isdisjoint(row):
                yield OPTIONS[row["theirs"]]


def test_what_is_left_out_has_the_same_default_here() -> None:
    compared = [each for each in copies() if each.here not in ("`seed`", "`output`")]
    assert len(compared) > 10
    for option in compared:
        if option.default is not None:
            assert ours(option.here.strip("`")) == option.default, option.names


SCRIPT = """
import os
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward, think_format_reward
from mine.judging import short

open("executed", "w").write("a script was run")
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
GROUP = 8
data = load_dataset("trl-lib/DeepMath-103K", "all", split="train[:1000]")

def exact(completions, answer, **columns):
    return [0.0] * len(completions)

training_args = GRPOConfig(
    output_dir="runs/there",
    learning_rate=5e-6,
    num_generations=GROUP,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2 * 4,
    steps_per_generation=32,
    num_iterations=2,
    max_completion_length=1024,
    max_steps=500,
    warmup_steps=10,
    save_steps=100,
    beta=0.04,
    use_bias_correction_kl=False,
    top_k=os.cpu_count(),
    reward_weights=[1.0, 0.5, 0.1, 0.2],
    report_to=["wandb"],
    use_vllm=True,
    vllm_mode="server",
    vllm_server_port=8001,
)

def main():
    trainer = GRPOTrainer(
        model=MODEL,
        args=training_args,
        reward_funcs=[accuracy_reward, think_format_reward, exact, short],
        train_dataset=data.shuffle(seed=1),
        peft_config=LoraConfig(r=16, target_modules=["q_proj"], lora_dropout=0.05),
    )
    trainer.train()
"""


def test_a_script_is_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.py").write_text(SCRIPT, "utf-8")
    result = call("port", "trl", "theirs.py", "--processes", "2", "--output", "new/run.yaml")
    assert result.exit_code == 0, result.output
    next_ = "next: do what is left to do, then\n  groupwise check new/run.yaml"
    assert f"wrote new/run.yaml; {next_}" in result.stdout
    assert not Path("executed").exists()
    text = Path("new/run.yaml").read_text("utf-8")
    config = yaml.safe_load(text)
    # 4 x 2 processes x 32 = 256 completions: 32 groups. 32 / 8 = 4 updates, twice: 8 a step.
    assert config["train"] == {
        "group_size": 8,
        "groups_per_step": 32,
        "updates_per_rollout": 4,
        "epochs": 2,
        "steps": 63,
        "warmup_steps": 2,
        "checkpoint_every": 13,
        "learning_rate": 5e-6,
        "schedule": "linear",
    }
    assert config["policy"]["lora"] == {"rank": 16, "alpha": 8, "targets": ["q_proj"]}
    assert config["policy"]["model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert config["policy"]["precision"] == "bf16"
    assert config["output"] == "runs/there"
    assert [(each["name"], each["weight"]) for each in config["rewards"]] == [
        ("math", 1.0),
        ("think_format", 0.5),
        ("theirs:exact", 0.1),
        ("mine.judging:short", 0.2),
    ]
    assert config["prompts"] == {
        "name": "dataset",
        "path": "trl-lib/DeepMath-103K",
        "subset": "all",
        "split": "train[:1000]",
        "held_out": 0.1,
    }
    assert config["sampler"] == {"name": "vllm", "servers": ["http://127.0.0.1:8001"]}
    assert config["algorithm"] == {
        "name": "grpo",
        "normalize": "token",
        "beta": 0.04,
        "importance": "sequence",
        "importance_mode": "mask",
        "importance_cap": 3.0,
    }
    words = " ".join(text.replace("#", " ").split())
    assert "500 updates there, 8 of them a step here" in words
    assert "lora_dropout: 0.05: never applied here" in words
    assert "top_k = os.cpu_count(): line 31 computes it, and files are read, not run" in words
    assert "theirs, but low: adapters" in words


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({"loss_type": "grpo", "epsilon": 0.1}, {"name": "grpo", "clip_low": 0.1}),
        ({}, {"name": "grpo", "normalize": "token"}),
        ({"loss_type": "bnpo", "delta": 2.0}, {"normalize": "token", "ratio_cap": 2.0}),
        (
            {"loss_type": "dr_grpo", "scale_rewards": False},
            {"name": "dr_grpo", "scale": "none"},
        ),
        ({"loss_type": "dr_grpo"}, {"name": "dr_grpo", "scale": "group"}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"name": "cispo", "clip_high": 4.0}),
        ({"loss_type": "sapo", "sapo_temperature_neg": 2.0}, {"tau_negative": 2.0}),
        ({"loss_type": "vespo", "vespo_k_pos": 1.0}, {"name": "vespo", "k_positive": 1.0}),
        (
            {"loss_type": "luspo", "importance_sampling_level": "sequence"},
            {"name": "luspo", "clip_low": 0.2, "clip_high": 0.2},
        ),
        (
            {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
            {"name": "gspo", "normalize": "token", "clip_low": 3e-4, "clip_high": 4e-4},
        ),
        (
            {"loss_type": "grpo", "multi_objective_aggregation": "normalize_then_sum"},
            {"name": "gdpo"},
        ),
        (
            {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 64},
            {"beta": 0.1, "reference_every": 64, "reference_mix": 0.6},
        ),
        (
            {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"},
            {"importance": "token", "importance_mode": "truncate", "importance_cap": 3.0},
        ),
        ({"scale_rewards": "batch", "top_entropy_quantile": 0.2}, {"top_entropy_quantile": 0.2}),
    ],
)
def test_losses_become_algorithms(
    ported: Ported, settings: dict[str, Any], algorithm: dict[str, Any]
) -> None:
    config, _ = ported("trl", "theirs.yaml", yaml.safe_dump({"max_steps": 10, **settings}))
    assert config["algorithm"].items() >= algorithm.items()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("nowhere.yaml", None, "nowhere.yaml: no such file; expected a GRPOConfig as YAML"),
        (
            "a.yaml",
            "learning_rat: 1",
            "unknown option 'learning_rat', did you mean 'learning_rate'?",
        ),
        ("a.yaml", "learning_rate: fast", "learning_rate: expected a number, found 'fast'"),
        ("a.yaml", "use_vllm: 1", "use_vllm: expected true or false, found 1"),
        ("a.yaml", "policy: {name: flow}", "not TRL's; expected a GRPOConfig"),
        ("a.yaml", "[1, 2]", "expected a GRPOConfig as YAML or JSON"),
        ("a.json", "{", "not valid JSON"),
        ("a.py", "def f(:", "a.py, line 1: not valid Python"),
        ("a.py", "import trl\nSFTConfig()", "no call of GRPOConfig; expected a GRPOConfig as"),
        ("a.py", "GRPOConfig()\nGRPOConfig()", "2 calls of GRPOConfig, in lines 1, 2"),
        ("a.yaml", "num_generations: 6", "a generation of 8 completions"),
        (
            "a.yaml",
            "generation_batch_size: 8\nsteps_per_generation: 1",
            "are both set, which TRL refuses",
        ),
        ("a.json", "[" * 9999, "a.json: not valid JSON"),
        ("a.yaml", "num_generations: 0", "cannot be translated: num_generations: 0"),
        ("a.yaml", "per_device_train_batch_size:", "per_device_train_batch_size: null"),
        ("a.bin", b"\xff\xfe\x00", "a.bin: not a text file"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(file).write_bytes(text if isinstance(text, bytes) else text.encode())
    result = call("port", "trl", file, "--output", "run.yaml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("run.yaml").exists()


def test_the_name_of_a_run_goes_to_its_trackers(ported: Ported) -> None:
    theirs = {"max_steps": 3, "report_to": ["trackio", "tensorboard"], "run_name": "sums"}
    config, _ = ported("trl", "theirs.yaml", yaml.safe_dump(theirs))
    names = ("trackio", "tensorboard")
    assert config["tracking"] == [{"name": name, "run": "sums"} for name in names]
    _, text = ported("trl", "theirs.yaml", yaml.safe_dump({"max_steps": 3, "run_name": "sums"}))
    assert "run_name: sums: the name of a run is that of its folder" in text
    assert "lora_dropout: 0.05, their default: never applied here" in " ".join(
        ported("trl", "b.yaml", yaml.safe_dump({"max_steps": 3, "use_peft": True}))[1].split()
    )


def test_names_of_another_version_are_listed_and_the_others_ported(ported: Ported) -> None:
    settings = {"learning_rate": 1e-5, "max_steps": 3, "num_generations": 4, "betta": 0.1, "new": 1}
    config, text = ported("trl", "theirs.yaml", yaml.safe_dump(settings))
    assert (config["train"]["steps"], config["train"]["group_size"]) == (3, 4)
    assert "#   new: not known here, perhaps of another version or your own\n" in text
    assert "betta: not known here, perhaps of another version or your own, did you mean" in text


def test_values_that_only_a_run_would_know_are_named(ported: Ported) -> None:
    script = "args = GRPOConfig(learning_rate=rate(), max_steps=9**9**9, **more)\nx = 1\nx = 2\n"
    script += "GRPOTrainer(model=load(), args=args, reward_funcs=[lambda **c: 1], train_dataset=d)"
    config, text = ported("trl", "theirs.py", script)
    words = " ".join(text.replace("#", " ").split())
    assert "learning_rate = rate(): line 1 computes it, and files are read, not run; set" in words
    for name in ("max_steps = 9 **", "**more", "model_name_or_path = load()", "train_dataset = d"):
        assert name in words
    assert config["train"]["groups_per_step"] == 1


def test_names_that_are_bound_twice_or_are_parameters_are_not_known(ported: Ported) -> None:
    script = """
lr = 1e-6
lr, steps = 5e-6, 100
def main(max_completion_length):
    config = GRPOConfig(learning_rate=lr, max_completion_length=max_completion_length)
    config.beta = 0.04
    config.num_generations = 4
    GRPOTrainer(model="m", reward_funcs=[f], args=config)
max_completion_length = 64
"""
    config, text = ported("trl", "theirs.py", script)
    assert config["algorithm"]["beta"] == 0.04
    assert config["train"]["group_size"] == 4
    assert config["policy"].get("max_new_tokens") != 64
    for name in ("learning_rate = lr", "max_completion_length = max_completion_length"):
        assert name in text


def test_files_of_a_data_set_are_read_and_changes_of_its_rows_are_named(ported: Ported) -> None:
    script = """
data = load_dataset("csv", data_files="sums.csv", split="train").rename_column("q", "prompt")
GRPOTrainer(model="m", reward_funcs=[f], args=GRPOConfig(max_prompt_length=256),
            train_dataset=data.select(range(50)))
"""
    config, text = ported("trl", "theirs.py", script)
    assert config["prompts"]["path"] == "sums.csv"
    assert config["prompts"]["held_out"] == 0.1
    assert config["policy"]["max_prompt_tokens"] == 256
    words = " ".join(text.replace("#", " ").split())
    assert "held_out: 0.1" in words
    assert "TRL trains on all rows" in words
    assert ".rename_column('q', 'prompt')" in words
    assert ".select(range(50))" in words


def test_an_unknown_framework_and_a_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("max_steps: 3", "utf-8")
    result = call("port", "flow-grpo", "a.yaml")
    assert result.exit_code == 2
    assert "flow-grpo: unknown, did you mean 'flow_grpo'?; expected one of trl" in result.stderr
    Path("run.yaml").write_text("mine", "utf-8")
    assert call("port", "trl", "a.yaml", "--output", "run.yaml").exit_code == 2
    assert Path("run.yaml").read_text("utf-8") == "mine"
    assert call("port", "trl", "a.yaml", "--output", "run.yaml", "--force").exit_code == 0


# The form of open-r1's recipes/Qwen2.5-1.5B-Instruct/grpo/config_demo.yaml.
OPEN_R1 = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct",
    "torch_dtype": "bfloat16",
    "dataset_name": "open-r1/OpenR1-Math-220k",
    "dataset_prompt_column": "problem",
    "system_prompt": "Think first.",
    "chat_template": "{{ messages }}",
    "reward_funcs": ["accuracy", "code", "format", "tag_count", "cosine", "repetition_penalty"],
    "reward_weights": [1.0, 5.0, 0.5, 0.25, 1.0, 1.0],
    "cosine_max_len": 2000,
    "cosine_min_value_wrong": -0.1,
    "repetition_n_grams": 4,
    "num_generations": 16,
    "per_device_train_batch_size": 16,
    "overwrite_output_dir": True,
}


def test_a_recipe_of_open_r1_keeps_its_prompts_and_rewards(ported: Ported) -> None:
    config, text = ported("trl", "theirs.yaml", yaml.safe_dump(OPEN_R1))
    prompts = {"path": "open-r1/OpenR1-Math-220k", "prompt": "problem", "chat": True}
    assert config["prompts"] | prompts | {"system": "Think first."} == config["prompts"]
    assert config["policy"]["chat_template"] == {"chat_template": "{{ messages }}"}
    of_math = {"rules": "open_r1", "gold": "solution"}
    lengths = {"right_short": 1.0, "right_long": 0.5, "wrong_short": -0.1, "wrong_long": -0.5}
    assert config["rewards"] == [
        {"name": "math", **of_math, "weight": 1.0},
        {"name": "think_answer_format", "weight": 0.5},
        {"name": "tag_count", "weight": 0.25},
        {"name": "cosine_length", "max_length": 2000, **lengths, **of_math, "weight": 1.0},
        {"name": "repetition", "size": 4, "max_penalty": -1.0, "over": "words", "weight": 1.0},
    ]
    assert "reward_funcs: code: no such reward" in text
    assert "not known here" not in text


UNSLOTH = """
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer

rank = 32
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Qwen3-4B-Base", max_seq_length=2048, load_in_4bit=False, max_lora_rank=rank
)
model = FastLanguageModel.get_peft_model(
    model, r=rank, target_modules=["q_proj", "v_proj"], lora_alpha=rank * 2, random_state=3407
)
args = GRPOConfig(num_generations=4, per_device_train_batch_size=4, max_steps=100)
trainer = GRPOTrainer(model=model, args=args, reward_funcs=["accuracy"], train_dataset=rows)
"""
PEFT = """
from peft import LoraConfig, get_peft_model
base = load()
lora = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj"])
model = get_peft_model(base, lora)
args = GRPOConfig(num_generations=4, per_device_train_batch_size=4)
trainer = GRPOTrainer(model, "accuracy", args=args, train_dataset=rows)
"""


def test_adapters_that_other_calls_than_the_trainers_make(ported: Ported) -> None:
    config, _ = ported("trl", "theirs.py", UNSLOTH)
    policy = config["policy"]
    assert policy["model"] == "unsloth/Qwen3-4B-Base"
    assert policy["lora"] == {"rank": 32, "targets": ["q_proj", "v_proj"]}
    assert "quantize" not in policy
    unset = UNSLOTH.replace('r=rank, target_modules=["q_proj", "v_proj"], lora_alpha=rank * 2,', "")
    policy = ported("trl", "theirs.py", unset.replace("load_in_4bit=False, ", ""))[0]["policy"]
    assert (policy["lora"]["rank"], policy["lora"]["alpha"], policy["quantize"]) == (16, 16, "4bit")
    assert len(policy["lora"]["targets"]) == 7
    config, _ = ported("trl", "theirs.py", PEFT)
    assert config["policy"]["lora"] == {"rank": 8, "alpha": 32, "targets": ["q_proj"]}


def test_a_script_that_doubles_a_string_ends_soon(ported: Ported) -> None:
    lines = ["s0 = 'abcdefgh'", *(f"s{n} = s{n - 1} + s{n - 1}" for n in range(1, 46))]
    lines += ["l0 = ['a']", *(f"l{n} = [l{n - 1}, l{n - 1}]" for n in range(1, 46))]
    call = "args = GRPOConfig(output_dir=s45, report_to=l45, run_name=s3, num_generations=4)"
    config, text = ported("trl", "theirs.py", "\n".join([*lines, call]))
    assert "output" not in config
    assert len(text) < 10_000
