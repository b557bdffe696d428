"""What TRL's `GRPOConfig` inherits from transformers' `TrainingArguments`."""

from typing import Any

from groupwise_commands.porting.port import Port
from groupwise_commands.porting.trl.batch import batch

TRACKERS = ("wandb", "tensorboard", "trackio", "mlflow", "swanlab")
LOW_FOR_LORA = 1e-5
"""LoRA usually takes learning rates of this or more."""


def write_rate(port: Port) -> None:
    rate = port.get("learning_rate")
    low = port.get("use_peft") and rate < LOW_FOR_LORA
    why = "theirs, but low: adapters usually take 10 times the rate of full training, 1e-5 or more"
    if low or port.states("learning_rate"):
        port.write("train.learning_rate", rate, why if low else "")


def write_warmup(port: Port) -> None:
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


def write_betas(port: Port) -> None:
    port.write("train.betas", [port.get("adam_beta1"), port.get("adam_beta2")])


def write_optimizer(port: Port) -> None:
    name = port.get("optim")
    if "8bit" in name and "adam" in name:
        port.write("train.optimizer", "adamw_8bit")
    elif not name.startswith("adamw"):
        port.lose_value("optim", "adamw, or adamw_8bit of bitsandbytes")


def write_precision(port: Port) -> None:
    if port.get("fp16"):
        port.lose("fp16: true", "bf16 or float32 here; bf16 is written")
    if port.get("fp16") or port.get("bf16") is not False:
        why = "" if port.states("bf16", "fp16") else "on there unless set"
        port.write("policy.precision", "bf16", why)


def write_evaluated(port: Port) -> None:
    if port.get("eval_strategy") == "no":
        return
    every = port.get("eval_steps") or port.get("logging_steps") or 10
    if port.get("eval_strategy") == "epoch" or every < 1:
        port.todo.append("evaluation.every: in steps; theirs is a share of the run")
        return
    ours = batch(port).steps(every)
    port.write("evaluation.every", ours, _converted(every, ours))


def write_saved(port: Port) -> None:
    every = port.get("save_steps")
    if port.get("save_strategy") == "no":
        port.write("train.checkpoint_minutes", None, "save_strategy: no")
    elif port.get("save_strategy") == "steps" and every >= 1:
        ours = batch(port).steps(every)
        port.write("train.checkpoint_every", ours, _converted(every, ours))
    else:
        port.todo.append("train.checkpoint_every: in steps; by time, every 15 minutes, if unset")


def write_trackers(port: Port) -> None:
    value: Any = port.get("report_to")
    names = [value] if isinstance(value, str) else value or []
    known = [name for name in names if name in TRACKERS]
    for name in names:
        if name not in (*TRACKERS, "none"):
            port.lose(f"report_to: {name}", f"trackers here are {', '.join(TRACKERS)}")
    if known:
        port.write("tracking", known)


def write_run_name(port: Port) -> None:
    """Trackers are written before."""
    run, trackers = port.get("run_name"), port.written.get("tracking")
    if trackers and run:
        port.write("tracking", [{"name": name, "run": run} for name in trackers])
    elif run:
        port.lose_value("run_name", "the name of a run is that of its folder, `output`")


def write_sharded(port: Port) -> None:
    if port.get("fsdp") or port.get("deepspeed"):
        port.write("train.shard", True, "FSDP2, in place of their FSDP or DeepSpeed configuration")
