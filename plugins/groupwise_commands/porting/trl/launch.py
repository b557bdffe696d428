"""The arguments of TRL's `GRPOTrainer`, and of the command `trl grpo`."""

import math

from groupwise_commands.porting.port import Port

USUAL_TARGETS = ["q_proj", "v_proj"]
"""What peft adapts unless told, in models such as Llama, Qwen and Mistral."""


def write_model(port: Port) -> None:
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


def write_lora(port: Port) -> None:
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


def write_quantized(port: Port) -> None:
    bits = "4bit" if port.get("load_in_4bit") else "8bit" if port.get("load_in_8bit") else None
    if bits:
        port.write("policy.quantize", bits)
    if bits == "4bit" and port.get("bnb_4bit_quant_type") != "nf4":
        port.lose_value("bnb_4bit_quant_type", "4bit is nf4 here, with double quantisation")


def write_prompts(port: Port) -> None:
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


def write_tools(port: Port) -> None:
    if factory := port.get("environment_factory"):
        port.write("environment.name", "trl")
        port.write("environment.factory", factory)
    else:
        port.write("environment.name", "tools")
    if port.get("tools"):
        port.write("environment.tools", port.get("tools"))
