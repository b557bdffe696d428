"""UniRL's options of the model: `bundle`, `pipeline`, and the adapters of `backend`."""

from groupwise_commands.porting.option import Group, changed, same, settled
from groupwise_commands.porting.port import Port

PRECISIONS = {"fp32": "float32", "bf16": "bf16", "fp16": "fp16"}


def is_text(port: Port) -> bool:
    """Whether the recipe trains a language model."""
    return str(port.get("sampling._target_")).endswith("ARSamplingParams")


def _model(port: Port) -> None:
    text = is_text(port)
    port.write("policy.name", "language_model" if text else "flow")
    name = port.get("bundle.config.pretrained_model_ckpt_path")
    if name:
        port.write("policy.model", name)
    else:
        port.todo.append("policy.model: a hub name or a folder; the file names no model")
    kind = port.get("pipeline.autocast_precision") or port.get("bundle.config.model_precision")
    precision = PRECISIONS.get(kind, "bf16")
    if text and precision == "fp16":
        precision = "bf16"
    why = "of computation; trained weights are float32 here, and log-probs always"
    port.write("policy.precision", precision, why)


def _length(port: Port) -> None:
    if not is_text(port):
        value = port.get("bundle.config.max_sequence_length")
        port.write("policy.prompt_tokens", value)


def _lora(port: Port) -> None:
    rank, alpha = port.get("backend.lora_cfg.rank"), port.get("backend.lora_cfg.alpha")
    port.write("policy.lora.rank", rank)
    port.write("policy.lora.alpha", alpha)
    if targets := port.get("backend.lora_cfg.target_modules"):
        port.write("policy.lora.targets", targets)
    if port.get("backend.lora_cfg.dropout"):
        port.lose_value("backend.lora_cfg.dropout", "never applied here: ratios would not be 1")


def _checkpointing(port: Port) -> None:
    if port.get("backend.fsdp_cfg.activation_checkpointing"):
        port.write("policy.gradient_checkpointing", value=True)


def _shard(port: Port) -> None:
    if not any(name.startswith("backend.lora_cfg") for name in port.settings.stated):
        port.write("train.shard", True, "FSDP2, as theirs; leave it out if one GPU holds the model")


MODEL = Group(
    title="Model",
    options=(
        changed(
            "bundle.config.pretrained_model_ckpt_path",
            "`policy.model`",
            _model,
            kind=(str,),
            always=True,
        ),
        settled(
            "bundle.config.model_precision",
            "bundle.config.autocast_precision",
            "pipeline.autocast_precision",
            here="`policy.precision`",
            note="trained weights are float32 here",
        ),
        changed(
            "bundle.config.max_sequence_length",
            "`policy.prompt_tokens`",
            _length,
            kind=(int,),
        ),
        settled(
            "bundle.*",
            "pipeline.*",
            here="`policy`",
            note="the pipeline's own configuration; latents and log-probs are float32",
        ),
        changed("backend.lora_cfg.rank", "`policy.lora.rank`", _lora, 8),
        settled("backend.lora_cfg.alpha", here="`policy.lora.alpha`", default=16),
        settled(
            "backend.lora_cfg.target_modules",
            "backend.lora_cfg.dropout",
            here="`policy.lora.targets`",
            note="dropout is never applied: ratios would not be 1",
        ),
        changed(
            "backend.fsdp_cfg.activation_checkpointing",
            "`policy.gradient_checkpointing`",
            _checkpointing,
            False,
        ),
        changed("backend.fsdp_cfg.fsdp_mode", "`train.shard`", _shard, None),
        same(
            "backend.optimizer_cfg.learning_rate",
            "train.learning_rate",
            1e-5,
            always=True,
        ),
        changed(
            "backend.optimizer_cfg.adam_beta1",
            "`train.betas`",
            lambda port: port.write(
                "train.betas",
                [
                    port.get("backend.optimizer_cfg.adam_beta1"),
                    port.get("backend.optimizer_cfg.adam_beta2"),
                ],
            ),
            0.9,
        ),
        settled("backend.optimizer_cfg.adam_beta2", here="`train.betas`", default=0.999),
        same("backend.optimizer_cfg.weight_decay", "train.weight_decay", 0.0),
        same("backend.scheduler_cfg.warmup_steps", "train.warmup_steps", 0),
        same("backend.scheduler_cfg.type", "train.schedule", "constant"),
        settled(
            "backend.*",
            note="the run shards, loads and optimises by itself; AdamW's `train.epsilon` is 1e-8",
        ),
    ),
)
