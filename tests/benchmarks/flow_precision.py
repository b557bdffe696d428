"""How far half precision puts the log-ratios of a second update off, in clip ranges.

    python tests/benchmarks/flow_precision.py [--rate 3e-4] [--images 24]

A random SD3 with LoRA (guidance 4.5 in training, 9 of 10 steps). At a step's first update the ratio
is 1 whatever the precision, as both of its log-probs are computed alike. So one update is made, in
float32, and the same weights then tell of the same samples in each precision: the log-ratio to
their own log-probs from before. What differs from float32's is rounding, and a clip range of 1e-4
takes it for learning. `log_prob_error` is the metric of that name: a log-prob's distance from
float32's before any update.
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
from groupwise_flow.settings import Settings

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
    # Each computes the unconditional branch itself, before the update as after it.
    known = {k: v for k, v in rollouts.trajectory.items() if k != "unconditional"}
    rollouts = replace(rollouts, trajectory=known)
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
        off = (ratios[name] - ratios["float32"]).abs() / CLIP
        wrong = ((ratios[name].abs() > CLIP) != (ratios["float32"].abs() > CLIP)).float().mean()
        error = (before[name] - before["float32"]).abs().mean() / CLIP
        print(f"| {name} | {off.mean():.2f} | {off.max():.2f} | {wrong:.1%} | {error:.2f} |")


def make(folder: Path, precision: str) -> FlowPolicy:
    """All with the same adapters, none of them zero."""
    torch.manual_seed(0)
    settings = Settings(
        model=str(folder),
        lora={"rank": 32},
        prompt_tokens=1,
        steps=STEPS,
        guidance=GUIDANCE,
        precision=precision,
    )
    policy = FlowPolicy(settings)
    policy.place("cpu")
    with torch.no_grad():
        for parameter in trained(policy):
            parameter.add_(0.02 * torch.randn(parameter.shape))
    return policy


def trained(policy: FlowPolicy) -> list[torch.nn.Parameter]:
    return [p for p in policy.parameters() if p.requires_grad]


def log_probs(policy: FlowPolicy, rollouts: Rollouts) -> torch.Tensor:
    with torch.no_grad():
        parts = [policy(rollouts, slice(n, n + 1)).log_probs for n in range(STEPS - 1)]
    return torch.cat(parts, dim=1)


def update(policy: FlowPolicy, rollouts: Rollouts, rate: float) -> None:
    """One step of AdamW along random advantages."""
    advantages = torch.randn(len(rollouts), 1, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(trained(policy), lr=rate)
    for number in range(STEPS - 1):
        answer = policy(rollouts, slice(number, number + 1)).log_probs
        (-answer * advantages).mean().backward()
    torch.nn.utils.clip_grad_norm_(trained(policy), 1.0)
    optimizer.step()


@torch.no_grad()
def copy_trained(source: FlowPolicy, target: FlowPolicy) -> None:
    for one, other in zip(trained(source), trained(target), strict=True):
        other.copy_(one)


if __name__ == "__main__":
    main()
