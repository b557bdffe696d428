"""One process of two, of which only one has pictures: sampling, log-probs and gradients.

python processes_job.py _ OUT: the folder of OUT has cases.json, by name the settings and whether
they are sharded; the results of a case are written to NAME-RANK.pt there.
"""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from tests.llm.vision import reference

from groupwise.kit import processes
from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings

GROUP = 2
ROWS = [reference.rows()[number] for number in (2, 0)]
"""A prompt with two pictures, and one without any."""


def trained(policy):
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def run(settings, accelerator, *, shard):
    policy = VisionLanguageModel(VisionSettings(**settings))
    if shard:
        policy.shard(processes.mesh(accelerator))
    policy.place("cpu")
    rank = accelerator.process_index
    seeds = range(GROUP * rank, GROUP * (rank + 1))
    rollouts = policy.sample(ROWS[rank : rank + 1], group_size=GROUP, seeds=seeds)
    model = policy if shard else accelerator.prepare(policy)
    for _ in range(2):
        # DDP and FSDP average over processes.
        (accelerator.num_processes * model(rollouts).log_probs.sum()).backward()
    gradient = {name: whole(p.grad).clone() for name, p in trained(policy).items()}
    step(policy)
    with torch.no_grad():
        after = model(rollouts).log_probs
    again = policy.sample(ROWS[rank : rank + 1], group_size=GROUP, seeds=seeds)
    return {
        "tokens": rollouts.facts["completion_ids"],
        "gradient": gradient,
        "after": after,
        "sampled": (again.facts["completion_ids"], again.sampler_log_probs),
    }


@torch.no_grad()
def step(policy):
    for parameter in trained(policy).values():
        parameter.add_(parameter.grad, alpha=0.001)


def main(out):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    torch.set_num_threads(1)
    accelerator = Accelerator()
    for name, (settings, shard) in json.loads((out.parent / "cases.json").read_text()).items():
        result = run(settings, accelerator, shard=shard)
        torch.save(result, out.parent / f"{name}-{accelerator.process_index}.pt")
    if accelerator.is_main_process:
        out.write_text("null")


if __name__ == "__main__":
    main(Path(sys.argv[2]))
