"""Accuracy over seconds of a real model: TRL's GRPOTrainer or ours, in parts.

    python tests/benchmarks/curve_trl.py ours --until 7 --points ours.jsonl --work runs/curve
    python tests/benchmarks/curve_trl.py ours --until 14 --points ours.jsonl --work runs/curve
    python tests/benchmarks/curve_trl.py trl --device cpu --task sums --lora 16 --groups 8 \\
        --group 8 --length 24 --learning-rate 2e-4 --seed 1 --until 10 --points trl_1.jsonl \\
        --work runs/trl_1

The second goes on where the first stopped. SmolLM2-135M-Instruct in bf16 with weights in float32,
on a CPU in float32, all of them trained; 16 groups of 16 completions of at most 512 tokens unless
set otherwise, the same prompts, reward and settings on both sides. Accuracy is that of a step's
completions, whose prompts come up once. Each step becomes a line of `--points` when it ends; its
seconds are those of training, without loading the model: on a GPU of the clock, else those that the
process had on the CPU. Needs `pip install trl`, and the model of examples/get_smollm.py.
"""

import argparse
import json
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from word_sums import right, row, word_sums
from works import WORKS, make

EXAMPLES = Path(__file__).parents[2] / "examples"
GGUF = "model.gguf"
WARMUP = 5
STEPS, PROMPTS, PART = 100_000, 10_000, 16
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@dataclass(frozen=True, kw_only=True)
class Race:
    """model, work: folders, of the model and of checkpoints; seconds: of training until it stops,
    those of earlier parts included; groups, group: of a step; length: most tokens of a completion;
    lora: rank of adapters on every linear layer, None to train all weights; seed: of the order of
    prompts and of sampling.
    """

    model: Path
    work: Path
    rows: list[dict[str, Any]]
    device: str
    seconds: float
    groups: int = 16
    group: int = 16
    length: int = 512
    learning_rate: float = 1e-5
    lora: int | None = None
    seed: int = 0

    @property
    def bf16(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class Point:
    """At the end of a step: seconds of training; tokens of its completions; peak bytes so far."""

    step: int
    seconds: float
    accuracy: float
    tokens: float
    peak: int


class Points:
    """The points of a side in a file; a part begins with those of the steps it goes on from."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = path, device
        self.clock = time.perf_counter if device == "cuda" else time.process_time
        self.points: list[Point] = []

    def begin(self, step: int) -> None:
        """Called when all is loaded, `step` steps are done, and training begins."""
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        self.points = [p for p in (Point(**json.loads(x)) for x in lines) if p.step <= step]
        self.path.write_text("".join(map(_line, self.points)), encoding="utf-8")
        spent = self.points[-1].seconds if self.points else 0.0
        self.started = self.clock() - spent

    def add(self, step: int, accuracy: float, tokens: float) -> float:
        """Returns the seconds of training so far."""
        seconds = self.clock() - self.started
        self.points.append(Point(step, seconds, accuracy, tokens, _peak(self.device)))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(self.points[-1]))
        return seconds


def _line(point: Point) -> str:
    return json.dumps(asdict(point)) + "\n"


def _peak(device: str) -> int:
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--until", type=float, required=True, help="minutes of training in all")
    parser.add_argument("--points", type=Path, required=True, help="file of the curve")
    parser.add_argument("--work", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("--smollm", type=Path, default=EXAMPLES / "smollm" / "model")
    parser.add_argument("--task", choices=TASKS, default="word_sums")
    parser.add_argument("--lora", type=int, metavar="RANK", help="of adapters; else full training")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    for name in ("groups", "group", "length", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Race, name))
    parser.add_argument("--learning-rate", type=float, default=Race.learning_rate)
    parser.add_argument("--toy", action="store_true", help="a trial with a random tiny model")
    options = parser.parse_args()
    count = 64 if options.toy else PROMPTS
    race = Race(
        model=(toy if options.toy else model)(options.work, options.smollm),
        work=options.work,
        rows=TASKS[options.task](count),
        device=options.device,
        seconds=60 * options.until,
        groups=options.groups,
        group=options.group,
        length=options.length,
        learning_rate=options.learning_rate,
        lora=options.lora,
        seed=options.seed,
    )
    if options.toy:
        race = replace(race, groups=2, group=4, length=8)
    points = Points(options.points, options.device)
    SIDES[options.side](race, points)
    print(json.dumps({"steps": points.points[-1].step, "seconds": points.points[-1].seconds}))


def gsm_symbolic(count: int) -> list[dict[str, Any]]:
    import reasoning_gym

    questions = reasoning_gym.create_dataset("gsm_symbolic", size=count, seed=5)
    return [row(x["question"], str(x["answer"])) for x in questions]


def sums(count: int) -> list[dict[str, Any]]:
    """Sums and differences of two numbers of one digit, which come up several times."""
    import reasoning_gym

    shape = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    questions = reasoning_gym.create_dataset(
        "chain_sum", size=count, seed=5, allow_negation=False, **shape
    )
    return [row(x["question"], str(x["answer"])) for x in questions]


TASKS = {"word_sums": word_sums, "gsm_symbolic": gsm_symbolic, "sums": sums}


def model(work: Path, smollm: Path) -> Path:
    """A folder that both sides read: `smollm`, or its GGUF file as transformers saves it."""
    if not (smollm / GGUF).exists():
        return smollm
    path = work / "models" / "smollm"
    if not path.exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from groupwise_llm.files.quantization import as_plain

        partial = path.with_suffix(".partial")
        loaded = as_plain(
            AutoModelForCausalLM.from_pretrained(smollm, gguf_file=GGUF, dtype=torch.float32)
        )
        loaded.save_pretrained(partial)
        AutoTokenizer.from_pretrained(smollm, gguf_file=GGUF).save_pretrained(partial)
        partial.rename(path)
    return path


def toy(work: Path, smollm: Path) -> Path:
    path = work / "models" / "toy"
    if not path.exists():
        make(WORKS["tiny L"], path)
        (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


# ---- the sides


def trl(race: Race, points: Points) -> None:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
    from trl import GRPOConfig, GRPOTrainer

    class Watching(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            points.begin(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "reward" not in logs:
                return
            tokens = logs["completions/mean_length"] * race.groups * race.group
            seconds = points.add(state.global_step, logs["reward"], tokens)
            if seconds >= race.seconds:
                control.should_save = control.should_training_stop = True

    folder, part = race.work / "curve_trl", min(PART, race.groups * race.group)
    settings = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=part,
        gradient_accumulation_steps=race.groups * race.group // part,
        num_generations=race.group,
        max_completion_length=race.length,
        max_steps=STEPS,
        beta=0.0,
        use_cpu=race.device == "cpu",
        bf16=race.bf16,
        report_to="none",
        save_strategy="no",
        save_total_limit=1,
        lr_scheduler_type="constant_with_warmup",
        loss_type="grpo",
        gradient_checkpointing=False,
        logging_steps=1,
        disable_tqdm=True,
        max_grad_norm=1.0,
        model_init_kwargs={"dtype": "float32"},
        learning_rate=race.learning_rate,
        warmup_steps=WARMUP,
        seed=race.seed,
    )
    adapters = None
    if race.lora:
        adapters = LoraConfig(
            r=race.lora,
            lora_alpha=2 * race.lora,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
    trainer = GRPOTrainer(
        model=str(race.model),
        peft_config=adapters,
        reward_funcs=right,
        args=settings,
        train_dataset=Dataset.from_list(race.rows),
        callbacks=[Watching()],
    )
    checkpoint = get_last_checkpoint(str(folder)) if folder.exists() else None
    trainer.train(resume_from_checkpoint=checkpoint)


def ours(race: Race, points: Points) -> None:
    import groupwise

    class Watching(groupwise.Callback):
        def on_open(self, run: Any) -> None:
            points.begin(run.step)

        def on_step(self, step: int, metrics: Any) -> None:
            tokens = metrics["length"] * race.groups * race.group
            if points.add(step, metrics["reward"], tokens) >= race.seconds:
                signal.raise_signal(signal.SIGINT)  # as Ctrl-C: the run ends after this step

    groupwise.train(
        policy={
            "name": "language_model",
            "model": str(race.model),
            "max_new_tokens": race.length,
            "precision": "bf16" if race.bf16 else "float32",
            "lora": {"rank": race.lora, "alpha": 2 * race.lora} if race.lora else None,
        },
        prompts=race.rows,
        rewards=[right],
        algorithm="grpo",
        train={
            "steps": STEPS,
            "groups_per_step": race.groups,
            "group_size": race.group,
            "checkpoint_minutes": None,
            "keep_checkpoints": 1,
            "learning_rate": race.learning_rate,
            "warmup_steps": WARMUP,
        },
        seed=race.seed,
        evaluation={"prompts": 0},
        callbacks=[Watching()],
        output=race.work / "curve_ours",
        resume="auto",
        quiet=True,
    )


SIDES: dict[str, Callable[[Race, Points], None]] = {"trl": trl, "ours": ours}


if __name__ == "__main__":
    main()
