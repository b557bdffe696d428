"""The gradient of both branches of guidance against that of the conditional one alone.

    python tests/benchmarks/guidance_gradient.py differences            # of examples/shapes/base
    python tests/benchmarks/guidance_gradient.py kl [--steps 60]
    python tests/benchmarks/guidance_gradient.py race --seeds 0 1 2 --jobs 2 --out runs/NAME

`differences` compares the gradient of log-probs by autograd with central differences of the same
log-probs along random directions (guidance 4.5). `kl` descends the KL to the base model alone, from
weights that noise has moved away from it. `race` trains examples/shapes.yaml with guidance 3 by
each gradient, until 300 steps or 17 minutes, and prints steps and seconds to an accuracy of 0.95 on
held-out prompts (guidance alone brings the base model from 0.51 to 0.88); see race.py for its
options.
"""

import argparse
import sys
import warnings

import torch
from race import ROOT, Race, main
from torch import Tensor

from groupwise import objective
from groupwise.rollouts import Rollouts
from groupwise_flow.policy import FlowPolicy

GRADIENTS = ("both", "conditional")
GUIDANCE = 4.5
DIRECTIONS, STEP = 48, 2e-4
"""Random directions, and the change of every weight along one in units of a standard normal."""
ROWS = [
    {"prompt": "a red disk left of a blue square"},
    {"prompt": "a green triangle above a red square"},
]
RACE = Race(
    config=ROOT / "examples" / "shapes.yaml",
    variants={name: [f"policy.guidance_gradient={name}"] for name in GRADIENTS},
    common=[
        "policy.guidance=3.0",
        "evaluation.every=10",
        "evaluation.samples=2",
        "train.schedule=constant",
    ],
    goal=0.95,
    held_out=True,
)


def base(gradient: str, *, lora: bool) -> FlowPolicy:
    """The base model of shapes with guidance, and with adapters of random weights for LoRA."""
    torch.manual_seed(0)
    settings = FlowPolicy.Config(
        model=str(ROOT / "examples" / "shapes" / "base"),
        prompt_tokens=1,
        steps=10,
        window={"kind": "random", "size": 3},
        guidance=GUIDANCE,
        guidance_gradient=gradient,
        lora={"rank": 32} if lora else None,
    )
    policy = FlowPolicy(settings)
    policy.place("cpu")
    if lora:
        move(policy, 0.02)
    return policy


def trained(policy: FlowPolicy) -> list[torch.nn.Parameter]:
    return [p for p in policy.parameters() if p.requires_grad]


@torch.no_grad()
def move(policy: FlowPolicy, size: float) -> None:
    """Adds noise to every trained weight."""
    generator = torch.Generator().manual_seed(3)
    for parameter in trained(policy):
        parameter.add_(size * torch.randn(parameter.shape, generator=generator))


# ---- differences


def differences() -> None:
    print("| `guidance_gradient` | LoRA, cosine | length | all weights, cosine | length |")
    print("|---|---|---|---|---|")
    for gradient in GRADIENTS:
        values = [value for lora in (True, False) for value in agreement(base(gradient, lora=lora))]
        print(f"| `{gradient}` | {' | '.join(f'{value:.2f}' for value in values)} |", flush=True)


def agreement(policy: FlowPolicy) -> tuple[float, float]:
    """Cosine and ratio of lengths of the derivatives by autograd and those by differences."""
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(rollouts.mask.shape, generator=generator)
    (policy(rollouts).log_probs * factors).sum().backward()
    parameters = trained(policy)
    before = [p.detach().clone() for p in parameters]
    by_autograd, by_differences = torch.zeros(2, DIRECTIONS, dtype=torch.float64)
    with torch.no_grad():
        for number in range(DIRECTIONS):
            direction = [torch.randn(p.shape, generator=generator) for p in parameters]
            sums = []
            for sign in (1, -1):
                for p, value, change in zip(parameters, before, direction, strict=True):
                    p.copy_(value + sign * STEP * change)
                sums.append((policy(rollouts).log_probs.double() * factors).sum())
            by_differences[number] = (sums[0] - sums[1]) / (2 * STEP)
            pairs = zip(parameters, direction, strict=True)
            by_autograd[number] = sum((p.grad * d).sum() for p, d in pairs if p.grad is not None)
    lengths = by_autograd.norm(), by_differences.norm()
    cosine = by_autograd @ by_differences / (lengths[0] * lengths[1])
    return float(cosine), float(lengths[0] / lengths[1])


# ---- the KL alone


def descend(steps: int, rate: float) -> None:
    print(f"| `guidance_gradient` | KL at first | after {steps} steps |\n|---|---|---|")
    for gradient in GRADIENTS:
        policy = base(gradient, lora=False)
        rollouts = policy.sample(ROWS, group_size=8, seeds=range(16))
        reference = {k: v.detach() for k, v in policy(rollouts).extra.items()}
        move(policy, 0.02)
        optimizer = torch.optim.AdamW(trained(policy), lr=rate, weight_decay=0.0)
        values = []
        for _ in range(steps):
            value = kl(policy, rollouts, reference)
            values.append(float(value.detach()))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        with torch.no_grad():
            values.append(float(kl(policy, rollouts, reference)))
        print(f"| `{gradient}` | {values[0]:.3f} | {values[-1]:.3f} |", flush=True)


def kl(policy: FlowPolicy, rollouts: Rollouts, reference: dict[str, Tensor]) -> Tensor:
    """The exact KL of all decisions to the reference, on average."""
    mean = policy(rollouts).extra["mean"]
    return objective.gaussian_kl(mean, reference["mean"], reference["std"]).mean()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    part = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if part == "race":
        main(RACE)
    elif part == "differences":
        differences()
    elif part == "kl":
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--steps", type=int, default=60)
        parser.add_argument("--rate", type=float, default=3e-4)
        options = parser.parse_args()
        descend(options.steps, options.rate)
    else:
        raise SystemExit(__doc__)
