"""What turns cost: episodes beside single completions, tools that are waited for, and TRL.

    python tests/benchmarks/episodes.py turns --rounds 5      # four turns and one completion
    python tests/benchmarks/episodes.py tools                 # behind a stand-in for an engine
    python tests/benchmarks/episodes.py trl --rounds 3        # needs `pip install trl`

A random model of `works.py` on a CPU with one thread. `turns` and `trl` measure processor time,
sides in turns, so that a busy machine matters little; `tools` measures the time of the clock,
and in brackets the processor's.
"""

import argparse
import asyncio
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from works import VARIETY, WORKS, Work, make

ROWS, GROUP, TURNS, DECISIONS = 32, 8, 4, 32
"""Episodes of a step, of a prompt; turns of an episode, tokens of a turn."""
ANSWER = " answer "
"""Of a tool; a letter is a token of the models here."""
WAIT = 0.2
"""Seconds that a tool takes."""
SMALL = Work(vocabulary=300, hidden=32, layers=1, heads=2, between=64)
TALKING = Work(ends=True, vocabulary=2048, hidden=256, layers=4, heads=4, between=512)
"""The model behind the stand-in; that beside TRL, whose turns have 32 tokens on average."""
ROOM, STEPS = 192, 3
"""Tokens of an episode beside TRL; steps, of which the first does not count."""
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{% if m.role == 'assistant' %}<end>{% endif %}{% endfor %}"
)
Tick = Callable[[float], None]
"""Called at the end of a step with its number of decisions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", default="A", choices=WORKS)
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    parser.add_argument("--model", type=Path, help="for `--side`")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(run_side(options.side, options.model)))
        return
    MEASUREMENTS[options.what](options)


def talk(turns: int, decisions: int, wait: float = 0.0) -> Any:
    """An environment: so many turns of at most so many tokens, between them a tool's answer, for
    which it waits so many seconds."""
    from groupwise import Environment

    class Talk(Environment):
        async def play(self, row: Any, players: Any) -> None:
            (player,) = players.values()
            text = row["prompt"]
            for turn in range(turns):
                if turn:
                    await asyncio.sleep(wait)
                    text += ANSWER
                text += (await player(text, limit=decisions)).text

    return Talk()


# ---- four turns and one completion


def turns(options: Any) -> None:
    """Seconds of sampling the same decisions in one turn and in several, tokens that the model
    reads for them, and seconds of a whole step."""
    import torch

    from groupwise.testing import play_episodes
    from groupwise_llm.policy import LanguageModel

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp()) / options.work
    work = WORKS[options.work]
    make(work, folder)
    room = TURNS * DECISIONS + (TURNS - 1) * len(ANSWER)
    policy = LanguageModel(LanguageModel.Config(model=str(folder), max_new_tokens=room))
    policy.place(torch.device("cpu"))
    read = [0]

    def count(_: Any, ids: Any) -> None:
        read[0] += ids[0].numel()

    policy.causal.model.get_input_embeddings().register_forward_pre_hook(count)
    rows = [{"prompt": prompt} for prompt in work.prompts(ROWS // GROUP)]
    sides = {"one completion": talk(1, TURNS * DECISIONS), "four turns": talk(TURNS, DECISIONS)}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    tokens, decisions = {}, {}
    for number in range(options.rounds + 1):
        for side, environment in sides.items():
            read[0], started = 0, time.process_time()
            episodes = play_episodes(environment, {"policy": policy}, rows, size=GROUP, seed=number)
            if number:  # the first round does not count
                seconds[side].append(time.process_time() - started)
            tokens[side], decisions[side] = read[0], int(episodes.judged.mask.sum())
    one, several = (statistics.median(own) for own in seconds.values())
    print("| | seconds of sampling | decisions | tokens through the model |\n|---|---|---|---|")
    for side in sides:
        print(
            f"| {side} | {statistics.median(seconds[side]):.2f} | {decisions[side]:,} "
            f"| {tokens[side]:,} |"
        )
    print(f"\nfour turns / one completion: {several / one:.2f}")


# ---- tools behind an engine


def tools(_: Any) -> None:
    """Seconds of episodes whose tools take `WAIT`, at the same time and one after the other."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.llm.vllm.engine import Engine

    from groupwise.episodes.episode_sampler import EpisodeSampler
    from groupwise.episodes.sampling import Sampling
    from groupwise.record import Group
    from groupwise_llm.policy import LanguageModel
    from groupwise_llm.vllm.sampler import VLLM

    class AtOnce(Engine):
        """Answers without a model, so that only what the run does takes time."""

        def choice(self, prompt: Any, inputs: Any, sampling: Any, number: int) -> dict[str, Any]:
            ids = [2 + (sampling["seed"] + n) % 200 for n in range(sampling["max_tokens"])]
            even = -math.log(SMALL.vocabulary)  # nearly the random model's
            return {
                "index": number,
                "token_ids": ids,
                "finish_reason": "length",
                "logprobs": {"content": [{"token_id": own, "logprob": even} for own in ids]},
                "weight_versions": [{"version": self.tag, "start": 0, "end": len(ids)}],
            }

    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp())
    make(SMALL, home / "model")
    room = TURNS * 2 + (TURNS - 1) * len(ANSWER)
    policy = LanguageModel(LanguageModel.Config(model=str(home / "model"), max_new_tokens=room))
    policy.place(torch.device("cpu"))
    engine = AtOnce(home / "model")
    with closing(VLLM(VLLM.Config(servers=[engine.url], folder=str(home)), policy)) as vllm:
        draws = [Group(n, {"prompt": prompt}) for n, prompt in enumerate(SMALL.prompts(ROWS))]

        def seconds(
            parts: Sequence[Sequence[Group]], sampler: Any, wait: float
        ) -> tuple[float, float]:
            """By the clock, and of the processor."""
            sampling = Sampling(policy, sampler, seed=0, batch=512)
            played = EpisodeSampler(talk(TURNS, 2, wait), {"policy": sampling}, {"policy": 1})
            with closing(played):
                played.follow({}, 0)
                played.begin(0)
                started, begun = time.perf_counter(), time.process_time()
                for part in parts:
                    for _ in played.draw(part):
                        pass
                return time.perf_counter() - started, time.process_time() - begun

        alone = [[draw] for draw in draws]
        print("| sampler | tools take | all at once | one after the other | ratio |")
        print("|---|---|---|---|---|")
        for name, sampler in (("stand-in for vLLM", vllm), ("in process", policy)):
            for wait in (0.0, WAIT):
                once, each = seconds([draws], sampler, wait), seconds(alone, sampler, wait)
                times = " | ".join(f"{own[0]:.2f} s ({own[1]:.2f} s)" for own in (once, each))
                print(f"| {name} | {wait:g} s | {times} | {each[0] / once[0]:.1f} |")
    engine.stop()


# ---- beside TRL


def beside_trl(options: Any) -> None:
    """Processor seconds of a step, decisions, peak memory; the same model, prompts and tool."""
    from transformers import AutoTokenizer

    print("| | seconds a step | decisions a step | peak GB |\n|---|---|---|---|")
    results: dict[str, list[Any]] = {side: [] for side in SIDES}
    folder = Path(tempfile.mkdtemp()) / "model"
    make(TALKING, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    for _ in range(options.rounds):
        for side, own in results.items():
            command = [sys.executable, __file__, "trl", "--side", side, "--model", str(folder)]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            own.append(json.loads(output.splitlines()[-1]))
    medians = {}
    for side, own in results.items():
        medians[side] = statistics.median(x for each in own for x in each["seconds"][1:])
        decisions = statistics.mean(x for each in own for x in each["decisions"][1:])
        peak = max(each["peak"] for each in own)
        print(f"| {side} | {medians[side]:.2f} | {decisions:,.0f} | {peak:.2f} |")
    print(f"\nTRL / Groupwise: {medians['TRL'] / medians['Groupwise']:.2f}")


def run_side(side: str, model: Path) -> dict[str, Any]:
    """Of one side: processor seconds and decisions of each step, and peak memory in GB."""
    import torch

    torch.set_num_threads(1)
    ends, decisions = [time.process_time()], list[float]()

    def tick(count: float) -> None:
        ends.append(time.process_time())
        decisions.append(count)

    SIDES[side](model, tick)
    seconds = [b - a for a, b in pairwise(ends)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts in KB
    return {"seconds": seconds, "decisions": decisions, "peak": peak}


def reward(completions: Any, **_: Any) -> list[float]:
    """A reward that differs within a group."""
    texts = ["".join(str(message["content"]) for message in own) for own in completions]
    return [sum(map(ord, text)) % 97 / 97 for text in texts]


def rows() -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": text}]} for text in TALKING.prompts(VARIETY)]


def look() -> str:
    """Look at something."""
    return ANSWER


def trl(model: Path, tick: Tick) -> None:
    """TRL's own loop over `tools`; every reply counts as a call, as below."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    def parsed(tokenizer: Any, ids: Any, **_: Any) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "look", "arguments": {}}}
        text = tokenizer.decode(ids, skip_special_tokens=True)
        return {"role": "assistant", "content": text, "tool_calls": [call]}

    grpo_trainer.parse_response = parsed
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.response_template = {}

    class Ticking(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            if "completions/mean_length" in logs:
                tick(logs["completions/mean_length"] * ROWS)

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=ROWS,
        num_generations=GROUP,
        max_completion_length=ROOM,
        max_tool_calling_iterations=TURNS - 1,
        max_steps=STEPS,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        learning_rate=1e-5,
        gradient_checkpointing=False,
        logging_steps=1,
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    GRPOTrainer(
        model=str(model),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(rows()),
        processing_class=tokenizer,
        tools=[look],
        callbacks=[Ticking()],
    ).train()


def ours(model: Path, tick: Tick) -> None:
    import groupwise

    class Asks(groupwise.Environment):
        async def play(self, row: Any, players: Any) -> None:
            (player,) = players.values()
            messages = [*row["prompt"]]
            for _ in range(TURNS):
                reply = await player(messages)
                messages += [reply.message, {"role": "tool", "name": "look", "content": look()}]

    class Ticking(groupwise.Callback):
        def on_step(self, step: int, metrics: Any) -> None:
            tick(metrics["length"] * ROWS)

    groupwise.train(
        policy={
            "name": "language_model",
            "model": str(model),
            "max_new_tokens": ROOM,
            "precision": "float32",
        },
        environment=Asks(),
        prompts=rows(),
        rewards=[reward],
        algorithm={"name": "grpo", "normalize": "token"},
        train={
            "steps": STEPS,
            "groups_per_step": ROWS // GROUP,
            "group_size": GROUP,
            "learning_rate": 1e-5,
        },
        evaluation={"prompts": 0},
        callbacks=[Ticking()],
        output=Path(tempfile.mkdtemp()) / "run",
        quiet=True,
    )


SIDES = {"TRL": trl, "Groupwise": ours}
MEASUREMENTS = {"turns": turns, "tools": tools, "trl": beside_trl}

if __name__ == "__main__":
    main()
