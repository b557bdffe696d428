"""What TRL's `GRPOConfig` inherits from transformers' `TrainingArguments`."""

from typing import Any

from groupwise_commands.porting.option import Group, absent, changed, same, settled
from groupwise_commands.porting.port import Port
from groupwise_commands.porting.trl.batch import batch, write_steps
from groupwise_commands.porting.trl.unneeded import UNNEEDED

SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
TRACKERS = ("wandb", "tensorboard", "trackio", "mlflow", "swanlab")
LOW_FOR_LORA = 1e-5
"""LoRA usually takes learning rates of this or more."""


def _rate(port: Port) -> None:
    rate = port.get("learning_rate")
    low = port.get("use_peft") and rate < LOW_FOR_LORA
    why = "theirs, but low: adapters usually take 10 times the rate of full training, 1e-5 or more"
    if low or port.states("learning_rate"):
        port.write("train.learning_rate", rate, why if low else "")


def _schedule(port: Port) -> None:
    kind = port.get("lr_scheduler_type")
    if kind not in SCHEDULES:
        port.lose_value("lr_scheduler_type", "constant, linear and cosine only; linear is written")
    why = "" if port.states("lr_scheduler_type") else "their default; constant here"
    port.write("train.schedule", SCHEDULES.get(kind, "linear"), why)


def _warmup(port: Port) -> None:
    """`warmup_steps`, a number of updates, or a share of all if below 1."""
    theirs = port.get("warmup_ratio") or port.get("warmup_steps")
    if not theirs:
        return
    steps = port.written.get("train.steps")
    if theirs < 1 and steps is None:
        port.todo.append(f"train.warmup_steps: {theirs:g} of all steps")
    elif theirs < 1:
        port.write("train.warmup_steps", round(theirs * steps), f"{theirs:g} of {steps} steps")
    else:
        ours = batch(port).steps(theirs)
        port.write("train.warmup_steps", ours, _converted(theirs, ours))


def _converted(theirs: float, ours: int) -> str:
    return f"{theirs:g} updates there" if ours != theirs else ""


def _betas(port: Port) -> None:
    port.write("train.betas", [port.get("adam_beta1"), port.get("adam_beta2")])


def _optimizer(port: Port) -> None:
    name = port.get("optim")
    if "8bit" in name and "adam" in name:
        port.write("train.optimizer", "adamw_8bit")
    elif not name.startswith("adamw"):
        port.lose_value("optim", "adamw, or adamw_8bit of bitsandbytes")


def _precision(port: Port) -> None:
    if port.get("fp16"):
        port.lose("fp16: true", "bf16 or float32 here; bf16 is written")
    if port.get("fp16") or port.get("bf16") is not False:
        why = "" if port.states("bf16", "fp16") else "on there unless set"
        port.write("policy.precision", "bf16", why)


def _checkpointing(port: Port) -> None:
    if port.get("gradient_checkpointing"):
        why = "" if port.states("gradient_checkpointing") else "on there unless set"
        port.write("policy.gradient_checkpointing", True, why)


def _evaluated(port: Port) -> None:
    if port.get("eval_strategy") == "no":
        return
    every = port.get("eval_steps") or port.get("logging_steps") or 10
    if port.get("eval_strategy") == "epoch" or every < 1:
        port.todo.append("evaluation.every: in steps; theirs is a share of the run")
        return
    ours = batch(port).steps(every)
    port.write("evaluation.every", ours, _converted(every, ours))


def _saved(port: Port) -> None:
    every = port.get("save_steps")
    if port.get("save_strategy") == "no":
        port.write("train.checkpoint_minutes", None, "save_strategy: no")
    elif port.get("save_strategy") == "steps" and every >= 1:
        ours = batch(port).steps(every)
        port.write("train.checkpoint_every", ours, _converted(every, ours))
    else:
        port.todo.append("train.checkpoint_every: in steps; by time, every 15 minutes, if unset")


def _trackers(port: Port) -> None:
    value: Any = port.get("report_to")
    names = [value] if isinstance(value, str) else value or []
    known = [name for name in names if name in TRACKERS]
    for name in names:
        if name not in (*TRACKERS, "none"):
            port.lose(f"report_to: {name}", f"trackers here are {', '.join(TRACKERS)}")
    if known:
        port.write("tracking", known)


def _run_name(port: Port) -> None:
    """Trackers are written before."""
    run, trackers = port.get("run_name"), port.written.get("tracking")
    if trackers and run:
        port.write("tracking", [{"name": name, "run": run} for name in trackers])
    elif run:
        port.lose_value("run_name", "the name of a run is that of its folder, `output`")


def _sharded(port: Port) -> None:
    if port.get("fsdp") or port.get("deepspeed"):
        port.write("train.shard", True, "FSDP2, in place of their FSDP or DeepSpeed configuration")


ARGUMENTS = (
    Group(
        title="From transformers' `TrainingArguments`: steps and optimizer",
        options=(
            same("output_dir", "output", None),
            changed(
                "max_steps",
                "`train.steps`",
                write_steps,
                -1,
                "theirs counts updates: `steps_per_generation` x `num_iterations` / "
                "`gradient_accumulation_steps` of them are a step here",
                always=True,
            ),
            settled(
                "num_train_epochs",
                here="`train.data_epochs`",
                note="where `max_steps` is not set",
                default=3.0,
            ),
            settled(
                "per_device_train_batch_size",
                here="`train.microbatch`",
                note="in tokens, prompts included; it does not change the gradient",
                default=8,
            ),
            settled(
                "gradient_accumulation_steps",
                here="`train.microbatch`",
                note="passes of an update are counted by the run",
                default=1,
            ),
            changed(
                "learning_rate",
                "`train.learning_rate`",
                _rate,
                1e-6,
                "1e-6 in both, too low for LoRA",
                always=True,
            ),
            changed(
                "lr_scheduler_type",
                "`train.schedule`",
                _schedule,
                "linear",
                "`linear` there, `constant` here",
                always=True,
            ),
            absent("lr_scheduler_kwargs", note="decays end at 0"),
            changed(
                "warmup_steps",
                "`train.warmup_steps`",
                _warmup,
                0,
                "updates, or a share of all, there",
            ),
            changed(
                "warmup_ratio", "`train.warmup_steps`", _warmup, 0.0, "of earlier transformers"
            ),
            same("weight_decay", "train.weight_decay", 0.0),
            changed("adam_beta1", "`train.betas`", _betas, 0.9),
            changed("adam_beta2", "`train.betas`", _betas, 0.999),
            same("adam_epsilon", "train.epsilon", 1e-8),
            same("max_grad_norm", "train.max_grad_norm", 1.0),
            changed(
                "optim",
                "`train.optimizer`",
                _optimizer,
                "adamw_torch_fused",
                "`adamw_8bit` for those in 8 bits",
            ),
            absent("optim_args", "optim_target_modules", note="no further options of optimizers"),
            same("seed", "seed", 42),
        ),
    ),
    Group(
        title="From transformers' `TrainingArguments`: precision, memory, evaluation, files",
        options=(
            changed(
                "bf16",
                "`policy.precision: bf16`",
                _precision,
                None,
                "on there, off here",
                kind=(bool,),
                always=True,
            ),
            settled("fp16", here="none", note="bf16 or float32", default=False),
            same("tf32", "train.tf32", None),
            changed(
                "gradient_checkpointing",
                "`policy.gradient_checkpointing`",
                _checkpointing,
                True,
                "on there, off here; a group's prompt is still computed once",
                always=True,
            ),
            changed("fsdp", "`train.shard`", _sharded, note="FSDP2; `true` or `node`"),
            changed("deepspeed", "`train.shard`", _sharded, note="FSDP2 in place of ZeRO-3"),
            changed(
                "eval_strategy",
                "`evaluation.every`",
                _evaluated,
                "no",
                "none there unless set; here before and after training, on a tenth of the prompts",
            ),
            settled(
                "eval_steps",
                here="`evaluation.every`",
                note="updates there; theirs is `logging_steps` unless set",
            ),
            changed(
                "save_steps",
                "`train.checkpoint_every`",
                _saved,
                500,
                "updates there; every 15 minutes here unless set",
            ),
            changed("save_strategy", "`train.checkpoint_every`", _saved, "steps"),
            same("save_total_limit", "train.keep_checkpoints", None, "2 here unless set"),
            changed("report_to", "`tracking`", _trackers, "none", kind=(str, list)),
            changed("run_name", "`run` of trackers", _run_name, None, kind=(str,)),
            absent(
                "neftune_noise_alpha",
                "label_smoothing_factor",
                "torch_compile",
                "parallelism_config",
                "push_to_hub",
                "load_best_model_at_end",
                note="no such option",
                default=False,
            ),
            *UNNEEDED,
        ),
    ),
)
