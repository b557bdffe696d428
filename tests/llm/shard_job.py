"""One process of several that share models: it answers, trains, samples and saves each.

python shard_job.py _ OUT: the folder of OUT has cases.json, with `models`, settings by name, and
`runs`, arguments of groupwise.train. What comes out of a model is left in NAME-RANK.pt, and the
saved model in NAME.
"""

import json
import os
import sys
import weakref
from pathlib import Path
from unittest.mock import patch

import torch
from accelerate import Accelerator

import groupwise
from groupwise import processes
from groupwise_llm.files.sharding import Share
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

PROMPTS = ("a longer prompt: 12+34=", "Hi", "7-5", "What is it?")
PER_PROMPT = 2


def rows(rank, processes):
    """The prompts of a process, and the seeds of their completions."""
    own = range(rank * len(PROMPTS) // processes, (rank + 1) * len(PROMPTS) // processes)
    seeds = [PER_PROMPT * prompt + number for prompt in own for number in range(PER_PROMPT)]
    return [{"prompt": PROMPTS[prompt]} for prompt in own], seeds


def loss(policy, rollouts):
    answers = policy(rollouts)
    return (answers.log_probs * rollouts.mask).sum() + (answers.entropy * rollouts.mask).sum() / 8


def full(policy, of=lambda p: p):
    """The trained weights, or what is `of` them, gathered."""
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    return {
        name: of(p).detach().full_tensor().clone()
        for name, p in trained.items()
        if of(p) is not None
    }


def placed(settings, mesh):
    """The policy, and how many weights were whole at once while it was read."""
    live, most, cut = [], [0], Share._cut

    def watched(self, module, name, parameter):
        if not hasattr(parameter, "placements") and not parameter.is_meta:
            live.append(weakref.ref(parameter.untyped_storage()))
            most[0] = max(most[0], sum(one() is not None for one in live))
        return cut(self, module, name, parameter)

    torch.manual_seed(0)
    policy = LanguageModel(Settings(**settings))
    policy.shard(mesh)
    with patch.object(Share, "_cut", watched):
        policy.place("cpu")
    return policy, most[0]


def forwards(policy, *arguments, **options):
    """What `sample` gives, and how many passes it made."""
    runs = []
    hook = policy.causal.register_forward_hook(lambda *_: runs.append(1))
    rollouts = policy.sample(*arguments, **options)
    hook.remove()
    return rollouts, len(runs)


def run(settings, mesh, saved):
    rank, processes = mesh.get_rank(), mesh.size()
    policy, whole = placed(settings, mesh)
    prompts, seeds = rows(rank, processes)
    out = {"notes": list(policy.notes), "whole": whole}
    out["held"] = sum(p.to_local().untyped_storage().nbytes() for p in policy.parameters())
    rollouts = policy.sample(prompts, group_size=PER_PROMPT, seeds=seeds)
    out["tokens"] = rollouts.facts["completion_ids"]
    out["sampled"] = rollouts.sampler_log_probs
    out["greedy"] = policy.sample(
        prompts, group_size=1, seeds=seeds[::2], purpose="greedy"
    ).completions
    policy.train()
    policy.keep("reference")
    out["kept"] = sorted(policy.kept("reference"))
    policy.keep("average")
    with torch.no_grad():
        answers = policy(rollouts)
    out["log_probs"], out["entropy"] = answers.log_probs, answers.entropy
    # The mean over processes of this is the sum over all rows.
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-2)
    (processes * loss(policy, rollouts)).backward()
    out["gradient"] = full(policy, lambda p: p.grad)
    optimizer.step()
    optimizer.zero_grad()
    out["weights"] = full(policy)
    policy.blend("average", 0.75)
    with torch.no_grad():
        out["after"] = policy(rollouts).log_probs
        with policy.using("reference"):
            out["reference"] = policy(rollouts).log_probs
        with policy.using("average"):
            out["average"] = policy(rollouts).log_probs
            out["average sampled"] = policy.sample(
                prompts, group_size=PER_PROMPT, seeds=seeds
            ).completions
        assert torch.equal(policy(rollouts).log_probs, out["after"])
        out["moved"] = policy.distance("reference")
        policy.blend("reference", 0.75)
        with policy.using("reference"):
            out["mixed"] = policy(rollouts).log_probs
    # One process is done at its first token, the other goes on to the last.
    ends, policy.ends = policy.ends, list(range(1000)) if rank else [-1]
    _, out["passes"] = forwards(policy, prompts, group_size=1, seeds=seeds[::2])
    policy.ends = ends
    policy.save_pretrained(saved)
    return out


def main(out):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    torch.set_num_threads(1)
    cases = json.loads((out.parent / "cases.json").read_text())
    accelerator = Accelerator()
    mesh = processes.mesh(accelerator)
    for name, settings in cases["models"].items():
        saved = out.parent / (name if accelerator.is_main_process else f"{name} of another")
        result = run(settings, mesh, saved)
        torch.save(result, out.parent / f"{name}-{mesh.get_rank()}.pt")
    for arguments in cases["runs"]:
        groupwise.train(**arguments, quiet=True)
    if accelerator.is_main_process:
        out.write_text("null")


if __name__ == "__main__":
    main(Path(sys.argv[2]))
