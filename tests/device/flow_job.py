"""The image model's job on both devices, and what its parts cost on one of them."""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from runs import beside, per_microbatch, plain, run_on_both
from simulated import Device
from torch import Tensor

from groupwise_flow.algorithm import FlowGRPO
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.settings import Settings

ROWS = [{"prompt": f"{letter} {animal}"} for letter in "abcdef" for animal in ("cat", "dog")]
LORA = {"full": None, "lora": {"rank": 2}}


def redness(completions: list[Any], images: list[Tensor], **_: Any) -> list[float]:
    """Measured where the pictures are, as a reward model would."""
    means = torch.stack(images).mean(dim=(2, 3))
    return (means[:, 0] - means[:, 1:].mean(dim=1)).tolist()


def save_model(folder: Path) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beside("flow").sd3().save_pretrained(folder)


def make(model: Path, **settings: Any) -> FlowPolicy:
    torch.manual_seed(1)
    size = {"height": 16, "width": 16, "prompt_tokens": 12}
    usual = {"steps": 4, "evaluation_steps": 2, "guidance": 2.0, "batch": 8}
    policy = FlowPolicy(Settings(model=str(model), **{**size, **usual, **settings}))
    policy.place("cpu")
    return policy


def run(folder: Path, model: Path) -> None:
    config = {
        "algorithm": {"name": "flow_grpo", "beta": 0.1},
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.4},
        "rewards": redness,
        "train": {"microbatch": 6},
    }
    window = {"kind": "random", "size": 2, "until": 1.0}
    for name, lora in LORA.items():
        settings = {"lora": lora, "window": window, "shared_noise": lora is None}
        run_on_both(folder / name, partial(make, model, **settings), config)


def denoising(device: Device, policies: Sequence[FlowPolicy]) -> float:
    """Waits that another denoising step adds, of two policies that differ in their number."""
    waits = []
    for policy in policies:
        call = partial(policy.to("cuda").sample, ROWS[:2], group_size=2, seeds=range(4))
        call()  # encodes the prompts
        waits.append(device.during(call).waits)
    few, many = (policy.config.steps for policy in policies)
    return (waits[1] - waits[0]) / (many - few)


def costs(model: Path) -> Mapping[str, float]:
    variants = {
        "guided": {},
        "unguided": {"guidance": 1.0},
        "shared noise": {"shared_noise": True, "window": {"kind": "fixed", "size": 1, "start": 2}},
    }
    pairs = {
        name: [make(model, steps=steps, **settings) for steps in (4, 6)]
        for name, settings in variants.items()
    }
    adapted = make(model, lora=LORA["lora"])
    algorithm = FlowGRPO(FlowGRPO.Config(beta=0.1))
    cost = {}
    elsewhere = pairs["guided"][0].sample(ROWS[:2], group_size=2, seeds=range(4))
    with Device() as device, plain():
        for name, pair in pairs.items():
            cost[f"denoising step, {name}"] = denoising(device, pair)
        for name, policy in {"full": pairs["guided"][0], "lora": adapted.to("cuda")}.items():
            policy(elsewhere)  # as another sampler may hand them over
            rollouts = policy.sample(ROWS[:2], group_size=2, seeds=range(4))
            cost[f"forward, {name}"] = device.during(partial(policy, rollouts)).waits
            with torch.no_grad():
                reference = {"reference_mean": policy(rollouts).extra["mean"].cpu()}
            cost[f"micro-batch, {name}"] = per_microbatch(
                device, policy, algorithm, rollouts, reference=reference, budgets=(4, 2)
            )
    return cost


def main(folder: Path) -> None:
    model = folder / "model"
    save_model(model)
    run(folder, model)
    (folder / "result.json").write_text(json.dumps({"costs": costs(model)}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
