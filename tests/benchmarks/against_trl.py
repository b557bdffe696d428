"""A training step of a language model: TRL's GRPOTrainer, ours, and what the model alone takes.

    python tests/benchmarks/against_trl.py                # makes the models, prints the table
    python tests/benchmarks/against_trl.py A V --rounds 5 --threads 1

Same random model, prompts, reward and settings, float32, on the CPU. Each side runs in a process of
its own, in turns, round by round; the first step of a process does not count. `bare` is a plain
loop over transformers without our code, with each prompt computed once for its group: tokens by
argmax, all logits of the update held, the update AdamW's own. On a machine that others use, too,
`--threads 1 --cpu-time` counts the time of the processor. Needs `pip install trl`.
"""

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

GROUP, RATE, VARIETY = 8, 1e-5, 64
Clock = Callable[[], float]
Tick = Callable[[], None]
"""What a side calls at the end of each step."""
Side = Callable[["Work", Path, int, Tick], None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """prompt, completion: tokens of each; rows: completions in a step; ends: whether a completion
    ends at each token with a chance of one in 32."""

    prompt: int = 32
    completion: int = 128
    rows: int = 32
    vocabulary: int = 8192
    hidden: int = 384
    layers: int = 6
    ends: bool = False

    def prompts(self, count: int) -> list[str]:
        draw = random.Random(0)
        letters = "abcdefghijklmnopqrstuvwxyz"
        return ["".join(draw.choices(letters, k=self.prompt)) for _ in range(count)]


WORKS = {
    "A": Work(),
    "B": Work(prompt=384, completion=64),
    "C": Work(ends=True),
    "V": Work(rows=16, vocabulary=151_936, hidden=128, layers=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], help="all if none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu-time", action="store_true", help="of the processor, not of the wall")
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    parser.add_argument("--models", type=Path, help="where the models are, made there if missing")
    options = parser.parse_args()
    works = options.works or list(WORKS)
    folder = options.models or Path(tempfile.mkdtemp())
    for name in works:
        if not (folder / name).exists():
            make(WORKS[name], folder / name)
    if options.side:
        (name,) = works
        clock = time.process_time if options.cpu_time else time.perf_counter
        print(
            json.dumps(alone(SIDES[options.side], WORKS[name], folder / name, options.steps, clock))
        )
        return
    note = " Processor time." if options.cpu_time else ""
    print(machine(options.threads) + note)
    print("\n| work | TRL | Groupwise | ratio | bare | Groupwise / bare | peak GB, TRL and ours |")
    print("|---|---|---|---|---|---|---|")
    for name in works:
        print(row(name, compared(name, folder, options)), flush=True)


def machine(threads: int) -> str:
    names = ("torch", "transformers", "trl")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    cpu = platform.processor() or platform.machine()
    models = Path("/proc/cpuinfo")
    if models.exists():
        lines = models.read_text().splitlines()
        cpu = next((x.partition(": ")[2] for x in lines if x.startswith("model name")), cpu)
    return f"{cpu}, {os.cpu_count()} cores, {threads} threads; {versions}."


def compared(name: str, folder: Path, options: Any) -> dict[str, dict[str, Any]]:
    """Of each side the seconds of all its steps and its peak in GB."""
    seen: dict[str, dict[str, Any]] = {side: {"seconds": [], "peak": 0.0} for side in SIDES}
    settings = ["--models", str(folder), "--steps", str(options.steps)]
    settings += ["--cpu-time"] if options.cpu_time else []
    threads = {"OMP_NUM_THREADS": str(options.threads)}
    for _ in range(options.rounds):
        for side, sums in seen.items():
            command = [sys.executable, __file__, name, "--side", side, *settings]
            output = subprocess.run(
                command, env={**os.environ, **threads}, stdout=subprocess.PIPE, check=True
            ).stdout
            answer = json.loads(output.splitlines()[-1])
            sums["seconds"] += answer["seconds"][1:]
            sums["peak"] = max(sums["peak"], answer["peak"])
    return seen


def row(name: str, seen: dict[str, dict[str, Any]]) -> str:
    trl, ours, bare = [statistics.median(seen[side]["seconds"]) for side in SIDES]
    peaks = f"{seen['trl']['peak']:.2f} and {seen['ours']['peak']:.2f}"
    times = f"{trl:.2f} s | {ours:.2f} s | {trl / ours:.2f} | {bare:.2f} s | {ours / bare:.2f}"
    return f"| {name} | {times} | {peaks} |"


# ---- the sides


def alone(side: Side, work: Work, model: Path, steps: int, clock: Clock) -> dict[str, Any]:
    """Seconds of each step, from the end of one to the end of the next; the process's peak."""
    ends = [clock()]
    side(work, model, steps, lambda: ends.append(clock()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts in KB
    return {"seconds": [stop - start for start, stop in pairwise(ends)], "peak": peak}


def reward(completions: Sequence[str], **_: Any) -> list[float]:
    """Some number that differs within a group."""
    return [sum(map(ord, completion)) % 97 / 97 for completion in completions]


def trl(work: Work, model: Path, steps: int, tick: Tick) -> None:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Ticking(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            tick()

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=work.rows,
        num_generations=GROUP,
        max_completion_length=work.completion,
        max_steps=steps,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        learning_rate=RATE,
        gradient_checkpointing=False,
        logging_steps=1,
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    rows = [{"prompt": prompt} for prompt in work.prompts(VARIETY)]
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Ticking()],
    )
    trainer.train()


def ours(work: Work, model: Path, steps: int, tick: Tick) -> None:
    import groupwise

    class Ticking(groupwise.Callback):
        def on_step(self, step: int, metrics: Any) -> None:
            tick()

    groupwise.train(
        policy={"name": "language_model", "model": str(model), "max_new_tokens": work.completion},
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


def bare(work: Work, model: Path, steps: int, tick: Tick) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(causal.parameters(), lr=RATE)
    prompts = torch.randint(2, 28, (work.rows // GROUP, work.prompt))
    lengths = torch.full((work.rows,), work.completion)
    for _ in range(steps):
        if work.ends:
            drawn = torch.empty(work.rows).geometric_(1 / 32).long()
            lengths = drawn.clamp(max=work.completion)
        ids = decoded(causal, prompts, lengths)
        mean_log_prob(causal, prompts, ids, lengths).neg().backward()
        optimizer.step()
        optimizer.zero_grad()
        tick()


SIDES = {"trl": trl, "ours": ours, "bare": bare}


# ---- the bare loop


def decoded(causal: Any, prompts: Any, lengths: Any) -> Any:
    """[rows, longest] ids; rows that are complete leave the batch as ours do."""
    import torch
    from transformers import DynamicCache

    with torch.no_grad():
        cache, rows = DynamicCache(config=causal.config), torch.arange(len(lengths))
        ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
        logits = causal(prompts, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        cache.batch_repeat_interleave(GROUP)
        logits = logits.repeat_interleave(GROUP, dim=0)
        for step in range(ids.shape[1]):
            ids[rows, step] = logits.argmax(dim=-1)
            alive = (lengths[rows] > step + 1).nonzero().flatten()
            if not len(alive):
                break
            if len(alive) <= 0.85 * len(rows):
                cache.batch_select_indices(alive)
                rows = rows[alive]
            logits = causal(ids[rows, step, None], past_key_values=cache).logits[:, -1]
    return ids


def mean_log_prob(causal: Any, prompts: Any, ids: Any, lengths: Any) -> Any:
    """Over all tokens, of one pass over the prompts and one over the completions behind them."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=causal.config)
    first = causal.base_model(prompts, past_key_values=cache, use_cache=True).last_hidden_state
    cache.batch_repeat_interleave(GROUP)
    rest = causal.base_model(ids[:, :-1], past_key_values=cache, use_cache=True).last_hidden_state
    states = torch.cat([first[:, -1:].repeat_interleave(GROUP, dim=0), rest], dim=1)
    mask = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    log_p = causal.get_output_embeddings()(states[mask]).log_softmax(dim=-1)
    return log_p.gather(1, ids[mask].unsqueeze(1)).mean()


# ---- the models


def make(work: Work, path: Path) -> None:
    """A random Qwen2 and a tokenizer in which every letter is a token."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=work.vocabulary,
        hidden_size=work.hidden,
        num_hidden_layers=work.layers,
        num_attention_heads=6 if work.hidden % 6 == 0 else 4,
        num_key_value_heads=2,
        intermediate_size=1024 if work.layers > 2 else 256,
        max_position_embeddings=1024,
        tie_word_embeddings=not work.ends,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=1,
    )
    model = Qwen2ForCausalLM(config)
    if work.ends:
        let_end(model)
    model.save_pretrained(path)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, "<pad>": 1} | {x: i for i, x in enumerate(letters, 2)}
    vocabulary |= {f"w{i}": i for i in range(len(vocabulary), work.vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", padding_side="left"
    ).save_pretrained(path)


def let_end(model: Any) -> None:
    """Make the end token about one in 32: one dimension of the hidden states is a constant, and
    the end token's logit is made of it alone."""
    import torch

    with torch.no_grad():
        head = model.lm_head.weight
        model.model.embed_tokens.weight[:, 0] = 5.0
        head[:, 0] = 0.0
        head[0] = 0.0
        ids = torch.randint(2, len(head), (8, 64))
        others = model(ids).logits[..., 2:].logsumexp(dim=-1).mean()
        constant = model.model(ids).last_hidden_state[..., 0].mean()
        head[0, 0] = (others - torch.tensor(31.0).log()) / constant


if __name__ == "__main__":
    main()
