"""The sides of `against_trl.py` and `vision_trl.py`: TRL's GRPOTrainer, ours, and a plain loop.

`in_turns` runs a script in a process for each side and round; in that process it calls `run_side`.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from works import VARIETY, Work

GROUP, RATE = 8, 1e-5
GRAPHS = "cuda_graphs"
Clock = Callable[[], float]
Tick = Callable[..., None]
"""Called by a side at the end of each step with the seconds of sampling and, if they differ, the
mean tokens of a completion."""
Side = Callable[[Work, Path, int, Tick, str], None]


def machine(options: Any) -> str:
    import torch

    names = ("torch", "transformers", "trl")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    if options.device == "cuda":
        return f"{torch.cuda.get_device_name()}; {versions}."
    cpu = platform.processor() or platform.machine()
    models = Path("/proc/cpuinfo")
    if models.exists():
        lines = models.read_text().splitlines()
        cpu = next((x.partition(": ")[2] for x in lines if x.startswith("model name")), cpu)
    return f"{cpu}, {os.cpu_count()} cores, {options.threads} threads; {versions}."


def has_graphs() -> bool:
    from groupwise_llm.settings import Settings

    return GRAPHS in Settings.model_fields


def without_graphs() -> dict[str, bool]:
    """The setting of our policy that switches CUDA graphs off."""
    if not has_graphs():
        sys.exit(f"this version has no policy.{GRAPHS}")
    return {GRAPHS: False}


def run_side(
    side: Side, work: Work, model: Path, steps: int, clock: Clock, *, device: str = "cpu"
) -> dict[str, Any]:
    """Seconds of each step, between the ends of two steps; peak memory in GB, of the GPU or of the
    process; the mean length of a completion in each step; the most tokens of one and of a step."""
    gpu, sampling, lengths = device == "cuda", list[float](), list[float]()
    if gpu:
        import torch
    ends = [clock()]

    def tick(sampled: float, length: float = work.completion) -> None:
        if gpu:
            torch.cuda.synchronize()
        ends.append(clock())
        sampling.append(sampled)
        lengths.append(length)

    side(work, model, steps, tick, device)
    # Linux counts in KB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if gpu:
        peak = torch.cuda.max_memory_allocated() / 1e9
    size = {"length": work.completion, "tokens": work.rows * work.completion}
    seconds = [b - a for a, b in pairwise(ends)]
    return {"seconds": seconds, "sampling": sampling, "lengths": lengths, "peak": peak, **size}


def in_turns(
    script: str, sides: Sequence[str], settings: Sequence[str], *, rounds: int, threads: int
) -> dict[str, dict[str, Any]]:
    """Seconds, seconds of sampling and mean lengths of all steps but the first ones, and peak
    memory in GB, of each side. settings: arguments of the script."""
    keys = ("seconds", "sampling", "lengths")
    measured: dict[str, dict[str, Any]] = {
        side: {**{key: [] for key in keys}, "peak": 0.0} for side in sides
    }
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if "cuda" not in settings:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    for _ in range(rounds):
        for side, values in measured.items():
            command = [sys.executable, script, *settings, "--side", side]
            output = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, check=True
            ).stdout
            result = json.loads(output.splitlines()[-1])
            for key in keys:
                values[key] += result[key][1:]
            values["peak"] = max(values["peak"], result["peak"])
    return measured


def reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """A reward that differs within a group. completions: texts, or messages."""
    texts = [own if isinstance(own, str) else own[-1]["content"] for own in completions]
    return [sum(map(ord, text)) % 97 / 97 for text in texts]


def trl(
    work: Work,
    model: Path,
    steps: int,
    tick: Tick,
    device: str,
    *,
    dtype: str = "float32",
    frozen: str = "",
) -> None:
    """dtype: of the weights and of the state of the optimizer; frozen: the module of the model that
    is not trained."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    sampled: list[tuple[float, float]] = []

    class Ticking(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            tick(*sampled[-1])

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            output = super()._generate(*args, **kwargs)
            seconds = time.perf_counter() - started
            sampled.append((seconds, statistics.mean(map(len, output[1]))))
            return output

    part = work.part or work.rows
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=part,
        gradient_accumulation_steps=work.rows // part,
        num_generations=GROUP,
        max_completion_length=work.completion,
        max_steps=steps,
        beta=0.0,
        use_cpu=device == "cpu",
        bf16=work.bf16,
        report_to="none",
        save_strategy="no",
        learning_rate=RATE,
        gradient_checkpointing=False,
        logging_steps=1,
        disable_tqdm=True,
        model_init_kwargs={"dtype": dtype},
    )
    trainer = Timed(
        model=str(model),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(work.examples(VARIETY)),
        callbacks=[Ticking()],
    )
    if frozen:
        trainer.model.get_submodule(frozen).requires_grad_(False)
    trainer.train()


def trl_in_bf16(*arguments: Any) -> None:
    trl(*arguments, dtype="bfloat16")


def ours(work: Work, model: Path, steps: int, tick: Tick, device: str, **settings: Any) -> None:
    """settings: further ones of the policy."""
    import groupwise

    class Ticking(groupwise.Callback):
        def on_step(self, step: int, metrics: Any) -> None:
            tick(metrics["time/sample"], metrics["length"])

    groupwise.train(
        policy={
            "name": "language_model",
            "model": str(model),
            "max_new_tokens": work.completion,
            "precision": "bf16" if work.bf16 else "float32",
            **settings,
        },
        prompts=work.examples(VARIETY),
        rewards=[reward],
        algorithm={"name": "grpo", "normalize": "token"},
        train={
            "steps": steps,
            "groups_per_step": work.rows // GROUP,
            "group_size": GROUP,
            "learning_rate": RATE,
        },
        evaluation={"prompts": 0},
        callbacks=[Ticking()],
        output=Path(tempfile.mkdtemp()) / "run",
        quiet=True,
    )


def ours_without_graphs(*arguments: Any) -> None:
    ours(*arguments, **without_graphs())


def alone(work: Work, model: Path, steps: int, tick: Tick, device: str) -> None:
    from model_alone import model_alone

    model_alone(work, model, steps, tick, group=GROUP, device=device)
