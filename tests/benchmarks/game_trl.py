"""The word game's class in TRL's GRPOTrainer and here, as it is, from the same model and prompts.

    python tests/benchmarks/game_trl.py --steps 30        # needs `pip install trl`

Processor seconds of a step, tokens that the model drew in it, peak memory, and the mean reward of
the last five steps. One thread. TRL reads calls by the `response_template` that is set here, which
says what `examples/word_game` teaches; of its losses it takes the one that divides by tokens.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
BASE = EXAMPLES / "word_game" / "base"
GROUPS, SIZE, TURNS, ROOM = 16, 8, 5, 110
RATE, WARMUP = 5e-4, 5
FORM = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|end|>", "content": "text"},
    },
}
Tick = Callable[[float, float], None]
"""Called at the end of a step, with its tokens and its mean reward."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured(options.side, options.steps)))
        return
    print("| | seconds a step | tokens a step | peak GB | reward at the end |")
    print("|---|---|---|---|---|")
    for side in SIDES:
        command = [sys.executable, __file__, "--side", side, "--steps", str(options.steps)]
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        own = json.loads(output.splitlines()[-1])
        seconds, tokens = statistics.median(own["seconds"][1:]), statistics.mean(own["tokens"])
        reward = statistics.mean(own["rewards"][-5:])
        print(f"| {side} | {seconds:.2f} | {tokens:,.0f} | {own['peak']:.2f} | {reward:.2f} |")


def measured(side: str, steps: int) -> dict[str, Any]:
    """Of one side: processor seconds, tokens and reward of each step, and peak memory in GB."""
    import torch

    torch.set_num_threads(1)
    ends, tokens, rewards = [time.process_time()], list[float](), list[float]()

    def tick(count: float, reward: float) -> None:
        ends.append(time.process_time())
        tokens.append(count)
        rewards.append(reward)

    SIDES[side](steps, tick)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts in KB
    seconds = [b - a for a, b in pairwise(ends)]
    return {"seconds": seconds, "tokens": tokens, "rewards": rewards, "peak": peak}


def rows(steps: int) -> list[dict[str, Any]]:
    from word_game.words import Words

    games = [Words()[number] for number in range(GROUPS * steps)]
    return [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in games]


def trl(steps: int, tick: Tick) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from word_game.game import WordGame

    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.response_template = FORM

    class Ticking(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            if "completions/mean_length" in logs:
                tick(logs["completions/mean_length"] * GROUPS * SIZE, logs["reward"])

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=GROUPS * SIZE,
        num_generations=SIZE,
        max_completion_length=ROOM,
        max_tool_calling_iterations=TURNS - 1,
        max_steps=steps,
        beta=0.0,
        learning_rate=RATE,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARMUP,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        gradient_checkpointing=False,
        logging_steps=1,
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    GRPOTrainer(
        model=str(BASE),
        args=settings,
        train_dataset=Dataset.from_list(rows(steps)),
        processing_class=tokenizer,
        environment_factory=WordGame,
        callbacks=[Ticking()],
    ).train()


def ours(steps: int, tick: Tick) -> None:
    from word_game.game import WordGame

    import groupwise
    from groupwise_agents.trl.environment import TRLEnvironment

    class Ticking(groupwise.Callback):
        def on_step(self, step: int, metrics: Any) -> None:
            tick(metrics["length"] * GROUPS * SIZE, metrics["reward"])

    groupwise.train(
        policy={
            "name": "language_model",
            "model": str(BASE),
            "max_new_tokens": ROOM,
            "precision": "float32",
        },
        environment=TRLEnvironment(WordGame, turns=TURNS),
        prompts=rows(steps),
        rewards=["environment_reward"],
        algorithm={"name": "grpo", "normalize": "token"},
        train={
            "steps": steps,
            "groups_per_step": GROUPS,
            "group_size": SIZE,
            "learning_rate": RATE,
            "warmup_steps": WARMUP,
        },
        evaluation={"prompts": 0},
        callbacks=[Ticking()],
        output=Path(tempfile.mkdtemp()) / "run",
        quiet=True,
    )


SIDES = {"TRL": trl, "Groupwise": ours}

if __name__ == "__main__":
    main()
