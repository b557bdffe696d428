"""The arguments of TRL's `GRPOTrainer`, and of the command `trl grpo`."""

import math

from groupwise_commands.porting.option import Group, absent, changed, settled
from groupwise_commands.porting.port import Port
from groupwise_commands.porting.trl.rewards import write_rewards

USUAL_TARGETS = ["q_proj", "v_proj"]
"""What peft adapts unless told, in models such as Llama, Qwen and Mistral."""


def _model(port: Port) -> None:
    port.write("policy.name", "language_model")
    if port.get("model_name_or_path") is None:
        port.todo.append("policy.model: a hub name or a folder; the file names no model")
    else:
        port.write("policy.model", port.get("model_name_or_path"))
    if port.get("model_revision") != "main":
        port.write("policy.loading.revision", port.get("model_revision"))
    kind = port.get("torch_dtype") or port.get("dtype")
    if kind not in (None, "float32", "auto") and port.get("use_peft"):
        port.write("policy.loading.dtype", kind)


def _lora(port: Port) -> None:
    if not port.get("use_peft"):
        return
    rank, alpha = port.get("lora_r"), port.get("lora_alpha")
    port.write("policy.lora.rank", rank)
    if port.get("use_rslora"):
        scaled = round(alpha * math.sqrt(rank), 6)
        why = f"rank-stabilised: {alpha:g} / sqrt({rank}) is this / {rank}"
        port.write("policy.lora.alpha", scaled, why)
    elif alpha != 2 * rank:
        port.write(
            "policy.lora.alpha", alpha, "scaled by alpha / rank in both; 2 x rank unless set"
        )
    targets = port.get("lora_target_modules")
    if targets is None:
        why = "what peft takes unless told, in Llama, Qwen and Mistral; all-linear is ours"
        port.write("policy.lora.targets", USUAL_TARGETS, why)
    elif targets not in ("all-linear", ["all-linear"]):
        port.write("policy.lora.targets", targets)
    if port.get("lora_dropout"):
        port.lose_value("lora_dropout", "never applied here: ratios would not be 1")
    for theirs, option in {
        "use_dora": "use_dora",
        "lora_modules_to_save": "modules_to_save",
        "lora_target_parameters": "target_parameters",
    }.items():
        if port.get(theirs):
            port.write(f"policy.lora.options.{option}", port.get(theirs))


def _quantized(port: Port) -> None:
    bits = "4bit" if port.get("load_in_4bit") else "8bit" if port.get("load_in_8bit") else None
    if bits:
        port.write("policy.quantize", bits)
    if bits == "4bit" and port.get("bnb_4bit_quant_type") != "nf4":
        port.lose_value("bnb_4bit_quant_type", "4bit is nf4 here, with double quantisation")


def _prompts(port: Port) -> None:
    name, mixture = port.get("dataset_name"), port.get("datasets") or []
    port.write("prompts.name", "dataset")
    if mixture and name is None:
        first, *others = mixture
        name = first.get("path")
        for other in others:
            port.lose(f"datasets: {other.get('path')}", "one data set; join them in a file")
        for theirs, ours in {"name": "subset", "split": "split"}.items():
            if first.get(theirs):
                port.write(f"prompts.{ours}", first[theirs])
    if name is None:
        if "train_dataset" not in port.settings.unread:
            port.todo.append("prompts.path: a file or a hub name; the file names no data set")
    else:
        port.write("prompts.path", name)
    port.write(
        "prompts.held_out",
        0.1,
        "TRL trains on all rows; 0 does, too, and there is no accuracy before and after then",
    )
    if port.get("dataset_config"):
        port.write("prompts.subset", port.get("dataset_config"))
    if port.get("dataset_train_split") != "train":
        port.write("prompts.split", port.get("dataset_train_split"))


def _tools(port: Port) -> None:
    if factory := port.get("environment_factory"):
        port.write("environment.name", "trl")
        port.write("environment.factory", factory)
    else:
        port.write("environment.name", "tools")
    if port.get("tools"):
        port.write("environment.tools", port.get("tools"))


LAUNCH = (
    Group(
        title="Arguments of `GRPOTrainer`, and of `trl grpo`: model and adapters",
        options=(
            changed(
                "model_name_or_path",
                "`policy.model`",
                _model,
                note="`model` of the trainer; a vision-language model: `policy: "
                "vision_language_model`",
                kind=(str,),
                always=True,
            ),
            settled("model_revision", here="`policy.loading.revision`", default="main"),
            settled("torch_dtype", here="`policy.loading.dtype`", note="an older name of `dtype`"),
            settled(
                "dtype",
                here="`policy.loading.dtype`",
                note="only for frozen weights",
                default="float32",
            ),
            absent("attn_implementation", note="the policy chooses its attention itself"),
            changed(
                "use_peft",
                "`policy.lora`",
                _lora,
                False,
                "`peft_config` of the trainer",
            ),
            settled("lora_r", here="`policy.lora.rank`", default=16),
            settled(
                "lora_alpha",
                here="`policy.lora.alpha`",
                note="twice the rank unless set here; 32 there, 8 in peft's `LoraConfig`",
                default=32,
            ),
            settled(
                "lora_dropout",
                here="none",
                note="never applied here: ratios would not be 1",
                default=0.05,
            ),
            settled(
                "lora_target_modules",
                here="`policy.lora.targets`",
                note="`all-linear` here unless set; peft's choice for the model there",
            ),
            settled(
                "lora_target_parameters",
                "lora_modules_to_save",
                "use_dora",
                here="`policy.lora.options`",
            ),
            settled(
                "use_rslora",
                here="`policy.lora.alpha`",
                note="theirs x sqrt(rank)",
                default=False,
            ),
            settled("lora_task_type", note="always of a causal language model"),
            changed("load_in_4bit", "`policy.quantize: 4bit`", _quantized, False),
            changed("load_in_8bit", "`policy.quantize: 8bit`", _quantized, False),
            settled(
                "bnb_4bit_quant_type",
                here="`policy.quantize: 4bit`",
                note="NF4 only",
                default="nf4",
            ),
            settled(
                "use_bnb_nested_quant",
                "bnb_4bit_quant_storage",
                note="scales are quantised, too, and products computed in `policy.precision`",
            ),
        ),
    ),
    Group(
        title="Arguments of `GRPOTrainer`, and of `trl grpo`: data, rewards, tools",
        options=(
            changed(
                "dataset_name",
                "`prompts: {name: dataset, path: ...}`",
                _prompts,
                note="`train_dataset` of the trainer, where the script loads it by "
                "`load_dataset(...)`",
                kind=(str,),
                always=True,
            ),
            settled("dataset_config", here="`prompts.subset`"),
            settled("dataset_train_split", here="`prompts.split`", default="train"),
            settled(
                "eval_dataset",
                "dataset_test_split",
                here="`evaluation.source`",
                note="a section like `prompts`; if unset, `prompts.held_out` of the prompts",
            ),
            settled("datasets", here="`prompts`", note="the first one", default=None),
            settled("train_dataset", here="`prompts`"),
            absent(
                "dataset_streaming",
                "streaming",
                note="rows are read from disk as needed, not from a stream",
                default=False,
            ),
            settled("test_split_size", here="`prompts.held_out`"),
            settled("ignore_bias_buffers"),
            changed(
                "reward_funcs",
                "`rewards`, each as `module:function`",
                write_rewards,
                note="called as TRL calls them; its own ones are `math` with `rules: trl`, "
                "`think_format`, `soft_overlong`; a model is `reward_model`; names without a "
                "module, such as `accuracy`, are those of open-r1",
                always=True,
            ),
            settled("reward_model_name_or_path", here="`rewards: [reward_model]`"),
            changed(
                "tools",
                "`environment: {name: tools, tools: [...]}`",
                _tools,
                note="functions as `module:function`",
            ),
            changed(
                "environment_factory",
                "`environment: {name: trl, factory: ...}`",
                _tools,
                note="[runs unchanged](agents.md)",
            ),
            absent("rollout_func", note="an [environment](environments.md) of your own"),
            absent("callbacks", note="`callbacks`, of Groupwise's own kind", default=[]),
            absent("optimizers", note="`train.optimizer`; no objects", default=None),
            settled(
                "processing_class",
                "reward_processing_classes",
                note="the model's own tokenizer",
            ),
        ),
    ),
)
