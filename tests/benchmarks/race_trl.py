"""Time to an accuracy: TRL's GRPOTrainer and ours on the sums of examples/arithmetic.yaml.

    python tests/benchmarks/race_trl.py                   # prints the table
    python tests/benchmarks/race_trl.py --rounds 3 --threads 1

Same base model, prompts, reward and settings, in turns, each in a separate process. Measured is the
time from the first prompt to a training accuracy of 0.85, the mean of three steps. Needs
`pip install trl`, and the base model that examples/arithmetic/make_base.py makes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BASE = Path(__file__).parents[2] / "examples" / "arithmetic" / "base"
GOAL, STEPS = 0.85, 400
SETTINGS = {"learning_rate": 1e-4, "warmup_steps": 5}
GROUPS, GROUP, LENGTH = 16, 16, 88
Over = Callable[[float], bool]
"""Called with the mean reward of a step; returns whether the race is over."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=600, help="seconds until a side gives up")
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(race_side(SIDES[options.side], options.limit)))
        return
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    for _ in range(options.rounds):
        for side, measured in results.items():
            command = [sys.executable, __file__, "--side", side, "--limit", str(options.limit)]
            output = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, check=True
            ).stdout
            measured.append(json.loads(output.splitlines()[-1]))
    print(f"| side | seconds to {GOAL} | steps | seconds a step |\n|---|---|---|---|")
    for side, measured in results.items():
        names = ("seconds", "steps", "step")
        seconds, steps, step = [statistics.median(x[name] for x in measured) for name in names]
        reached = "" if all(x["reached"] for x in measured) else " (not reached)"
        print(f"| {side} | {seconds:.1f}{reached} | {steps:.0f} | {step:.2f} |")


def race_side(side: Callable[[Over], None], limit: float) -> dict[str, Any]:
    start, accuracies, ends = time.perf_counter(), [], []

    def reached() -> bool:
        return len(accuracies) >= 3 and statistics.mean(accuracies[-3:]) >= GOAL

    def over(accuracy: float) -> bool:
        accuracies.append(accuracy)
        ends.append(time.perf_counter() - start)
        return reached() or ends[-1] > limit

    side(over)
    step = (ends[-1] - ends[0]) / max(1, len(ends) - 1)
    return {"seconds": ends[-1], "steps": len(ends), "step": step, "reached": reached()}


def rows() -> list[dict[str, str]]:
    import reasoning_gym

    sums = reasoning_gym.create_dataset(
        "chain_sum", size=5000, seed=5, min_terms=4, max_terms=6, min_digits=2, max_digits=2
    )
    return [{"prompt": x["question"] + "\n", "answer": x["answer"]} for x in sums]


def right(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 if the right answer is in its tags."""
    pairs = zip(completions, answer, strict=True)
    return [float(f"<answer>\n{gold}\n</answer>" in text) for text, gold in pairs]


def trl(over: Over) -> None:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Referee(TrainerCallback):
        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            if "reward" in logs and over(logs["reward"]):
                control.should_training_stop = True

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=GROUPS * GROUP,
        num_generations=GROUP,
        max_completion_length=LENGTH,
        max_steps=STEPS,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        lr_scheduler_type="constant_with_warmup",
        loss_type="grpo",
        gradient_checkpointing=False,
        logging_steps=1,
        disable_tqdm=True,
        max_grad_norm=1.0,
        model_init_kwargs={"dtype": "float32"},
        **SETTINGS,
    )
    trainer = GRPOTrainer(
        model=str(BASE),
        reward_funcs=right,
        args=settings,
        train_dataset=Dataset.from_list(rows()),
        callbacks=[Referee()],
    )
    trainer.train()


def ours(over: Over) -> None:
    import groupwise

    class Referee(groupwise.Callback):
        def on_step(self, step: int, metrics: Any) -> None:
            if over(metrics["reward"]):
                raise KeyboardInterrupt

    try:
        groupwise.train(
            policy={"name": "language_model", "model": str(BASE), "max_new_tokens": LENGTH},
            prompts=rows(),
            rewards=[right],
            algorithm="grpo",
            train={"steps": STEPS, "groups_per_step": GROUPS, "group_size": GROUP, **SETTINGS},
            evaluation={"prompts": 0},
            callbacks=[Referee()],
            output=Path(tempfile.mkdtemp()) / "run",
            quiet=True,
        )
    except KeyboardInterrupt:
        return


SIDES = {"trl": trl, "ours": ours}


if __name__ == "__main__":
    main()
