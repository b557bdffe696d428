"""Time of a training step of a language model: TRL's GRPOTrainer, ours, and a plain loop.

    python tests/benchmarks/against_trl.py                # makes the models, prints the table
    python tests/benchmarks/against_trl.py A V --rounds 5 --threads 1
    python tests/benchmarks/against_trl.py --device cuda --rounds 1 --steps 3    # a real size

Same random model, prompts, reward and settings, in float32 on the CPU and in bf16 on a GPU. Sides
run in turns, round by round, each in a separate process, whose first step does not count. `model
alone` is a plain loop over transformers without our code. On a machine that is shared, `--threads
1 --cpu-time` measures processor time. Needs `pip install trl`.
"""

import argparse
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

from works import DEFAULT, VARIETY, WORKS, Work, make

GROUP, RATE = 8, 1e-5
GRAPHS = "cuda_graphs"
Clock = Callable[[], float]
Tick = Callable[[float], None]
"""Called by a side at the end of each step with the seconds of sampling."""
Side = Callable[[Work, Path, int, Tick, str], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], help="all of the device if none")
    parser.add_argument("--device", choices=DEFAULT, default="cpu")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="all of the device if none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time, not wall time"
    )
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    parser.add_argument("--models", type=Path, help="where the models are, made there if missing")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    folder = options.models or Path(tempfile.mkdtemp())
    works = options.works or DEFAULT[options.device]
    for name in works:
        saved_model(name, folder, options.device)
    if options.side:
        (name,) = works
        clock = time.process_time if options.cpu_time else time.perf_counter
        side, work = SIDES[options.side], WORKS[name]
        print(
            json.dumps(
                run_side(side, work, folder / name, options.steps, clock, device=options.device)
            )
        )
        return
    left_out = {"trl in bf16", "ours without graphs"} if not on_gpu else set()
    left_out |= set() if has_graphs() else {"ours without graphs"}
    sides = options.sides or [side for side in SIDES if side not in left_out]
    note = " Processor time." if options.cpu_time else ""
    print(machine(options) + note)
    if not on_gpu:
        print(
            "\n| work | TRL | Groupwise | ratio | model alone | Groupwise / model alone "
            "| peak GB, TRL and ours |"
        )
        print("|---|---|---|---|---|---|---|")
    for name in works:
        print((rows if on_gpu else row)(name, compare(name, folder, sides, options)), flush=True)


def saved_model(name: str, folder: Path, device: str) -> Path:
    """The folder of a workload's model, which is made there if it is not yet."""
    path = folder / name
    if not path.exists():
        partial = folder / f"{name}.partial"
        make(WORKS[name], partial, device)
        partial.rename(path)
    return path


def has_graphs() -> bool:
    from groupwise_llm.settings import Settings

    return GRAPHS in Settings.model_fields


def without_graphs() -> dict[str, bool]:
    """The setting of our policy that switches CUDA graphs off."""
    if not has_graphs():
        sys.exit(f"this version has no policy.{GRAPHS}")
    return {GRAPHS: False}


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


def compare(name: str, folder: Path, sides: Sequence[str], options: Any) -> dict[str, Any]:
    """Seconds of all steps, seconds of sampling and peak memory in GB, of each side."""
    measured: dict[str, Any] = {
        side: {"seconds": [], "sampling": [], "peak": 0.0} for side in sides
    }
    settings = ["--models", str(folder), "--steps", str(options.steps), "--device", options.device]
    settings += ["--cpu-time"] if options.cpu_time else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    if options.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    for _ in range(options.rounds):
        for side, values in measured.items():
            command = [sys.executable, __file__, name, "--side", side, *settings]
            output = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, check=True
            ).stdout
            result = json.loads(output.splitlines()[-1])
            for key in ("seconds", "sampling"):
                values[key] += result[key][1:]
            values["peak"] = max(values["peak"], result["peak"])
    return measured


def row(name: str, measured: dict[str, Any]) -> str:
    trl, ours, alone = [statistics.median(values["seconds"]) for values in measured.values()]
    peaks = f"{measured['trl']['peak']:.2f} and {measured['ours']['peak']:.2f}"
    times = f"{trl:.2f} s | {ours:.2f} s | {trl / ours:.2f} | {alone:.2f} s | {ours / alone:.2f}"
    return f"| {name} | {times} | {peaks} |"


def rows(name: str, measured: dict[str, Any]) -> str:
    """A table with a line for each side."""
    tokens = WORKS[name].rows * WORKS[name].completion
    lines = [
        f"\n| {name} | seconds a step | of them sampling | tokens a second | peak GB |",
        "|---|---|---|---|---|",
    ]
    for side, values in measured.items():
        total, sampling = (statistics.median(values[key]) for key in ("seconds", "sampling"))
        numbers = f"{total:.2f} | {sampling:.2f} | {tokens / total:,.0f} | {values['peak']:.1f}"
        lines.append(f"| {side} | {numbers} |")
    return "\n".join(lines)


# ---- the sides


def run_side(
    side: Side, work: Work, model: Path, steps: int, clock: Clock, *, device: str = "cpu"
) -> dict[str, Any]:
    """Seconds of each step, between the ends of two steps; peak memory in GB, of the GPU or of the
    process; tokens of a completion and of a step."""
    gpu, sampling = device == "cuda", []
    if gpu:
        import torch
    ends = [clock()]

    def tick(sampled: float) -> None:
        if gpu:
            torch.cuda.synchronize()
        ends.append(clock())
        sampling.append(sampled)

    side(work, model, steps, tick, device)
    # Linux counts in KB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if gpu:
        peak = torch.cuda.max_memory_allocated() / 1e9
    size = {"length": work.completion, "tokens": work.rows * work.completion}
    seconds = [b - a for a, b in pairwise(ends)]
    return {"seconds": seconds, "sampling": sampling, "peak": peak, **size}


def reward(completions: Sequence[str], **_: Any) -> list[float]:
    """A reward that differs within a group."""
    return [sum(map(ord, completion)) % 97 / 97 for completion in completions]


def trl(
    work: Work, model: Path, steps: int, tick: Tick, device: str, *, dtype: str = "float32"
) -> None:
    """dtype: of the weights and of the state of the optimizer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    sampled: list[float] = []

    class Ticking(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            tick(sampled[-1])

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            output = super()._generate(*args, **kwargs)
            sampled.append(time.perf_counter() - started)
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
    rows = [{"prompt": prompt} for prompt in work.prompts(VARIETY)]
    trainer = Timed(
        model=str(model),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Ticking()],
    )
    trainer.train()


def trl_in_bf16(*arguments: Any) -> None:
    trl(*arguments, dtype="bfloat16")


def ours(work: Work, model: Path, steps: int, tick: Tick, device: str, **settings: Any) -> None:
    """settings: further ones of the policy."""
    import groupwise

    class Ticking(groupwise.Callback):
        def on_step(self, step: int, metrics: Any) -> None:
            tick(metrics["time/sample"])

    groupwise.train(
        policy={
            "name": "language_model",
            "model": str(model),
            "max_new_tokens": work.completion,
            "precision": "bf16" if work.bf16 else "float32",
            **settings,
        },
        prompts=[{"prompt": prompt} for prompt in work.prompts(VARIETY)],
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


SIDES = {
    "trl": trl,
    "trl in bf16": trl_in_bf16,
    "ours": ours,
    "ours without graphs": ours_without_graphs,
    "model alone": alone,
}


if __name__ == "__main__":
    main()
