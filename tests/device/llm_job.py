"""Training a language model on both devices, and the waits of its parts on the simulated one."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from casts import Casts
from runs import conftest_of, per_microbatch, plain, run_on_both
from simulated import Device

from groupwise.algorithms.grpo import GRPO
from groupwise.weights import kept_parameters
from groupwise_llm.model.kernels import OnCpu
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_llm.training import packing

llm = conftest_of("llm")
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(3)]
LORA = {"full": None, "lora": {"rank": 2, "targets": ["q_proj", "down_proj"]}}
VARIANTS = {
    **{name: {"lora": lora} for name, lora in LORA.items()},
    "filtered": {"top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1},
    "stopped": {"stop": ["never"]},
}


def digits(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    pairs = zip(completions, answer, strict=True)
    return [float(right in text) + text.count("1") - 0.1 * len(text) for text, right in pairs]


def save_model(folder: Path) -> None:
    """Every twentieth token is an end token, so that rows end at different times."""
    torch.manual_seed(7)
    changes = {"num_hidden_layers": 1, "eos_token_id": list(range(0, llm.SIZE, 20))}
    config = llm.Qwen2Config(**{**llm.GATED, **changes}, tie_word_embeddings=True)
    llm.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    llm.make_tokenizer().save_pretrained(folder)


def make(model: Path, **settings: Any) -> LanguageModel:
    torch.manual_seed(0)
    policy = LanguageModel(Settings(model=str(model), **{"max_new_tokens": 12, **settings}))
    policy.place("cpu")  # which loads it
    return policy


def place_quickly(policy: LanguageModel) -> None:
    """Places it on the device with the ability that it has shown on the CPU, and with that to
    capture tokens."""
    ability = policy.ability
    if policy.config.cuda_graphs:
        ability = replace(ability, decoding=replace(ability.decoding, graphs=True))
    with (
        patch("groupwise_llm.probing.probes.ability", lambda *_, **__: ability),
        patch("groupwise_llm.policy.with_graphs", lambda ability, *_: ability),
        patch("groupwise_llm.policy.with_fusion", lambda ability, *_: ability),
    ):
        policy.place("cuda")


def run(folder: Path, model: Path) -> None:
    config = {
        "algorithm": {"name": "grpo", "beta": 0.1, "entropy": 0.01},
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.4},
        "rewards": digits,
        "train": {"microbatch": 48},
    }

    def pack(*args: Any, overhead: int, **settings: Any) -> Any:
        return packing.pack(*args, overhead=512, **settings)

    # The code chooses by device how rows are packed and how often ended rows are dropped, which
    # changes the order of sums; and a graph sums over unused room. Here both devices use the same
    # choice, and no graphs: they are compared by `graphs_job`.
    with (
        patch("groupwise_llm.log_probs.pack", pack),
        patch("groupwise_llm.decoding.batches.check_interval", lambda device: 4),
    ):
        for name, lora in LORA.items():
            run_on_both(
                folder / name, partial(make, model, lora=lora, top_k=200, cuda_graphs=False), config
            )


def decoding(device: Device, policies: Sequence[LanguageModel]) -> tuple[float, float]:
    """Waits and launches per token: the difference of two policies by that of their lengths."""
    counts = []
    for policy in policies:
        policy.ends = [-1]  # no completion ends early
        place_quickly(policy)
        call = partial(policy.sample, ROWS[:2], group_size=4, seeds=range(8))
        counts.append(device.during(call))
    few, many = (policy.config.max_new_tokens for policy in policies)
    waits, launches = (
        (getattr(counts[1], name) - getattr(counts[0], name)) / (many - few)
        for name in ("waits", "launches")
    )
    return waits, launches


def costs(model: Path) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Waits of the host, and launches per token."""
    variants = {**VARIANTS, "eager": {"cuda_graphs": False}}
    pairs = {
        name: [make(model, max_new_tokens=length, **settings) for length in (16, 32)]
        for name, settings in variants.items()
    }
    policies = {name: make(model, lora=lora) for name, lora in LORA.items()}
    algorithm = GRPO(GRPO.Config(beta=0.1, entropy=0.01))
    cost, launches = {}, {}
    with Device() as device, plain():
        for name, pair in pairs.items():
            cost[f"token, {name}"], launches[name] = decoding(device, pair)
        for name, policy in policies.items():
            policy.place("cuda")
            rollouts = policy.sample(ROWS[:4], group_size=4, seeds=range(16))
            cost[f"forward, {name}"] = device.during(partial(policy, rollouts)).waits
            reference = {"reference_log_probs": rollouts.sampler_log_probs.cpu()}
            cost[f"micro-batch, {name}"] = per_microbatch(
                device, policy, algorithm, rollouts, reference=reference, budgets=(10_000, 40)
            )
    return cost, launches


def casts(model: Path) -> Mapping[str, Sequence[Mapping[str, float]]]:
    """By kind of training, four counts of casts by weight: after the trained weights have changed,
    sampling 1 token, sampling 1 again, and the same for 9 tokens."""
    counted = {}
    for name, lora in LORA.items():
        counted[name] = []
        for length in (1, 9):
            policy = make(model, lora=lora, precision="bf16", max_new_tokens=length)
            policy.ends = [-1]
            policy.place("cpu")
            with torch.no_grad():
                for weight in kept_parameters(policy).values():
                    weight.mul_(1.01)
            for _ in (1, 2):
                with Casts(policy) as casts:
                    policy.sample(ROWS[:2], group_size=4, seeds=range(8))
                counted[name].append(dict(casts.counts))
    return counted


def main(folder: Path) -> None:
    model = folder / "model"
    save_model(model)
    # The kernels of packed rows that a GPU has are not simulated.
    with patch("groupwise_llm.model.attention.kernel_of", lambda states: OnCpu()):
        run(folder, model)
        waits, launches = costs(model)
        result = {"costs": waits, "launches": launches, "casts": casts(model)}
    (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
