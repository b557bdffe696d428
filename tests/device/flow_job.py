"""Training an image model on both devices, and the waits of its parts on the simulated one."""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from runs import conftest_of, in_own_memory, per_microbatch, plain, run_on_both
from simulated import Device
from tests.flow.regress import Regress
from torch import Tensor, nn

from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.diffusion import DiffusionPolicy
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy

ROWS = [{"prompt": f"{letter} {animal}"} for letter in "abcdef" for animal in ("cat", "dog")]
LORA = {"full": None, "lora": {"rank": 2}}


def redness(completions: list[Any], pixels: list[Tensor], **_: Any) -> list[float]:
    """Computed on the device of the pictures, as by a reward model."""
    means = torch.stack(pixels).mean(dim=(2, 3))
    return (means[:, 0] - means[:, 1:].mean(dim=1)).tolist()


def save_model(folder: Path) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conftest_of("flow").sd3().save_pretrained(folder)


def make(model: Path, kind: type[DiffusionPolicy] = FlowPolicy, **settings: Any) -> Any:
    torch.manual_seed(1)
    size = {"height": 16, "width": 16, "prompt_tokens": 12}
    usual = {"steps": 4, "evaluation_steps": 2, "guidance": 2.0, "batch": 8}
    policy = kind(kind.Config(model=str(model), **{**size, **usual, **settings}))
    policy.place("cpu")
    for part in policy.adapter.pipeline.components.values():  # encoders may be beside the policy
        if isinstance(part, nn.Module):
            in_own_memory(part)
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
        settings["encoders"] = "resident" if lora is None else "offload"
        run_on_both(folder / name, partial(make, model, **settings), config)
    latents = partial(make, model, ForwardProcess, decisions=2, lora=LORA["lora"])
    run_on_both(folder / "final latents", latents, {**config, "algorithm": Regress()})


def denoising(device: Device, policies: Sequence[FlowPolicy]) -> float:
    """Waits per denoising step: the difference of two policies by their difference in steps."""
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
    lora_policy = make(model, lora=LORA["lora"])
    algorithm = FlowGRPO(FlowGRPO.Config(beta=0.1))
    cost = {}
    cpu_rollouts = pairs["guided"][0].sample(ROWS[:2], group_size=2, seeds=range(4))
    latents = make(model, ForwardProcess, decisions=2)
    cpu_latents = latents.sample(ROWS[:2], group_size=2, seeds=range(4))
    with Device() as device, plain():
        latents.to("cuda")
        latents(cpu_latents)
        rollouts = latents.sample(ROWS[:2], group_size=2, seeds=range(4))
        cost["forward, final latents"] = device.during(partial(latents, rollouts)).waits
        for name, pair in pairs.items():
            cost[f"denoising step, {name}"] = denoising(device, pair)
        for name, policy in {"full": pairs["guided"][0], "lora": lora_policy.to("cuda")}.items():
            policy(cpu_rollouts)  # another sampler may return rollouts on the CPU
            rollouts = policy.sample(ROWS[:2], group_size=2, seeds=range(4))
            cost[f"forward, {name}"] = device.during(partial(policy, rollouts)).waits
            with torch.no_grad():
                reference = {"reference_mean": policy(rollouts).extra["mean"].cpu()}
            cost[f"micro-batch, {name}"] = per_microbatch(
                device, policy, algorithm, rollouts, reference=reference, budgets=(4, 2)
            )
    return cost


def places(model: Path, encoders: str) -> Mapping[str, str]:
    """Where the text encoder is while it encodes, while the model denoises, and afterwards."""
    policy = make(model, encoders=encoders)
    places: dict[str, str] = {}
    encoder: Any = policy.adapter.pipeline.text_encoder_3
    with Device(), plain():
        policy.to("cuda")

        def note(moment: str) -> None:
            if policy.adapter.pipeline.text_encoder_3 is None:
                places[moment] = "none"
            else:
                places[moment] = next(encoder.parameters()).device.type

        encoder.register_forward_pre_hook(lambda *_: note("encoding"))
        policy.adapter.model.register_forward_pre_hook(lambda *_: note("denoising"))
        policy.check_prompts(ROWS)
        policy.sample(ROWS[:2], group_size=2, seeds=range(4))
        note("afterwards")
    return places


def main(folder: Path) -> None:
    model = folder / "model"
    save_model(model)
    run(folder, model)
    result = {
        "costs": costs(model),
        "places": {name: places(model, name) for name in ("resident", "offload", "cached")},
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
