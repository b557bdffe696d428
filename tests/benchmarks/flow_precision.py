"""Errors of the log-ratios of a second update in half precision, in units of the clip range.

    python tests/benchmarks/flow_precision.py [--rate 3e-4] [--images 24]

A random SD3 with LoRA (guidance 4.5 in training, 9 of 10 steps; its gradient is that of the
conditional branch, as in published training). At the first update of a step the
ratio is 1 in any precision. So one update is made in float32, and for the same weights and samples
the log-ratio to the log-probs before is computed in each precision. Its difference from that of
float32 is rounding, which a clip range of 1e-4 treats as a change of the policy. `log_prob_error`
is the metric of this name: the error of a log-prob before any update.
"""

import argparse
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from flow_iteration import GUIDANCE, STEPS, random_pipeline

from groupwise.rollouts import Rollouts
from groupwise_flow.policy import FlowPolicy

CLIP = 1e-4
PRECISIONS = ("float32", "bf16", "fp16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate of the update")
    parser.add_argument("--images", type=int, default=24)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp())
    random_pipeline(folder)
    policies = {precision: make(folder, precision) for precision in PRECISIONS}
    exact = policies["float32"]
    rollouts = exact.sample(
        [{"prompt": "a cat"}], group_size=options.images, seeds=range(options.images)
    )
    # Each precision computes the unconditional branch itself, before and after the update.
    trajectory = {k: v for k, v in rollouts.trajectory.items() if k != "unconditional"}
    rollouts = replace(rollouts, trajectory=trajectory)
    before = {name: log_probs(policy, rollouts) for name, policy in policies.items()}
    update(exact, rollouts, options.rate)
    for policy in policies.values():
        copy_trained(exact, policy)
    ratios = {n: log_probs(policy, rollouts) - before[n] for n, policy in policies.items()}
    size = ratios["float32"].abs() / CLIP
    print(
        f"log-ratios at the second update, in float32: mean {size.mean():.2f}, max {size.max():.2f}"
    )
    print("| precision | error, mean | error, max | wrongly clipped or not | log_prob_error |")
    print("|---|---|---|---|---|")
    for name in PRECISIONS[1:]:
        errors = (ratios[name] - ratios["float32"]).abs() / CLIP
        wrong = ((ratios[name].abs() > CLIP) != (ratios["float32"].abs() > CLIP)).float().mean()
        base = (before[name] - before["float32"]).abs().mean() / CLIP
        print(f"| {name} | {errors.mean():.2f} | {errors.max():.2f} | {wrong:.1%} | {base:.2f} |")


def make(folder: Path, precision: str) -> FlowPolicy:
    """A policy with random adapters, the same in every precision."""
    torch.manual_seed(0)
    settings = FlowPolicy.Config(
        model=str(folder),
        lora={"rank": 32},
        prompt_tokens=1,
        steps=STEPS,
        guidance=GUIDANCE,
        guidance_gradient="conditional",
        precision=precision,
    )
    policy = FlowPolicy(settings)
    policy.place("cpu")
    with torch.no_grad():
        for parameter in trained_parameters(policy):
            parameter.add_(0.02 * torch.randn(parameter.shape))
    return policy


def trained_parameters(policy: FlowPolicy) -> list[torch.nn.Parameter]:
    return [p for p in policy.parameters() if p.requires_grad]


def log_probs(policy: FlowPolicy, rollouts: Rollouts) -> torch.Tensor:
    with torch.no_grad():
        parts = [policy(rollouts, slice(n, n + 1)).log_probs for n in range(STEPS - 1)]
    return torch.cat(parts, dim=1)


def update(policy: FlowPolicy, rollouts: Rollouts, rate: float) -> None:
    """One step of AdamW along random advantages."""
    advantages = torch.randn(len(rollouts), 1, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(trained_parameters(policy), lr=rate)
    for number in range(STEPS - 1):
        log_prob = policy(rollouts, slice(number, number + 1)).log_probs
        (-log_prob * advantages).mean().backward()
    torch.nn.utils.clip_grad_norm_(trained_parameters(policy), 1.0)
    optimizer.step()


@torch.no_grad()
def copy_trained(source: FlowPolicy, target: FlowPolicy) -> None:
    for one, other in zip(trained_parameters(source), trained_parameters(target), strict=True):
        other.copy_(one)


if __name__ == "__main__":
    main()
