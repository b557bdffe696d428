"""One process of several: shards models, computes log-probs, trains, samples and saves each.

python shard_job.py _ OUT: the folder of OUT has cases.json, with `models`, settings by name;
`shard`, the setting `train.shard` of the models; and `runs`, arguments of groupwise.train. The
results of a model are written to NAME-RANK.pt, and the saved model to NAME.
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
from groupwise import testing
from groupwise.kit import processes
from groupwise.weights import KeptWeights
from groupwise_llm.files.sharding import Share
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_testing.policy import gradients
from groupwise_testing.policy.case import Case

PROMPTS = ("a longer prompt: 12+34=", "Hi", "7-5", "What is it?")
PER_PROMPT = 2
LAWFUL = "lora"
"""The model whose gradient, a mean over processes, is compared with differences of its outputs."""


def rows(rank, processes):
    """The prompts of a process, and the seeds of their completions."""
    own = range(rank * len(PROMPTS) // processes, (rank + 1) * len(PROMPTS) // processes)
    seeds = [PER_PROMPT * prompt + number for prompt in own for number in range(PER_PROMPT)]
    return [{"prompt": PROMPTS[prompt]} for prompt in own], seeds


def loss(policy, rollouts):
    current = policy(rollouts)
    return (current.log_probs * rollouts.mask).sum() + (current.entropy * rollouts.mask).sum() / 8


def optimizer_of(policy):
    """Divides by the gradient's size, so that with a small `eps` its rounding errors are steps."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-2, eps=0.1)


def full(policy, attribute=lambda p: p):
    """The trained weights, or an attribute of them such as the gradient, gathered."""
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    return {
        name: attribute(p).detach().full_tensor().clone()
        for name, p in trained.items()
        if attribute(p) is not None
    }


def placed(settings, mesh):
    """The policy, and how many unsharded weights were in memory at once while it was loaded."""
    references, largest, shard_parameter = [], [0], Share._cut

    def counted(self, module, name, parameter):
        if not hasattr(parameter, "placements") and not parameter.is_meta:
            references.append(weakref.ref(parameter.untyped_storage()))
            largest[0] = max(largest[0], sum(reference() is not None for reference in references))
        return shard_parameter(self, module, name, parameter)

    torch.manual_seed(0)
    policy = LanguageModel(Settings(**settings))
    policy.shard(mesh)
    with patch.object(Share, "_cut", counted):
        policy.place("cpu")
    return policy, largest[0]


def forwards(policy, *arguments, **options):
    """The rollouts of `sample`, and the number of its forward passes."""
    passes = []
    hook = policy.causal.register_forward_hook(lambda *_: passes.append(1))
    rollouts = policy.sample(*arguments, **options)
    hook.remove()
    return rollouts, len(passes)


def turns(policy, prompts, count):
    """The tokens of each prompt's context after so many turns in a session."""
    contexts = policy.encode(prompts)
    with policy.session():
        for turn in range(count):
            seeds = [10 * turn + len(row["prompt"]) for row in prompts]
            drawn = policy.draw(contexts, seeds=seeds, limits=[3] * len(prompts))
            contexts = [own.with_turn(turn) for own, turn in zip(contexts, drawn, strict=True)]
            contexts = [policy.extend(context, "ok") for context in contexts]
    return [context.completion_ids for context in contexts]


def run(name, settings, mesh, saved):
    rank, processes = mesh.get_rank(), mesh.size()
    policy, unsharded_at_once = placed(settings, mesh)
    prompts, seeds = rows(rank, processes)
    if name == LAWFUL:
        case = Case(policy, [*prompts, {"prompt": "abc"}], 1, None)
        testing.hold("a sharded policy", gradients.LAWS, case)
    results = {"notes": list(policy.notes), "unsharded at once": unsharded_at_once}
    results["local bytes"] = sum(
        p.to_local().untyped_storage().nbytes() for p in policy.parameters()
    )
    rollouts = policy.sample(prompts, group_size=PER_PROMPT, seeds=seeds)
    results["tokens"] = rollouts.facts["completion_ids"]
    results["sampled"] = rollouts.sampler_log_probs
    results["greedy"] = policy.sample(
        prompts, group_size=1, seeds=seeds[::2], purpose="greedy"
    ).completions
    results["turns"] = turns(policy, prompts, 1 + rank % 2)  # more on one process than on the other
    policy.train()
    kept = KeptWeights(policy)
    kept.keep("reference")
    results["kept"] = sorted(kept.copies("reference"))
    kept.keep("average")
    with torch.no_grad():
        current = policy(rollouts)
    results["log_probs"], results["entropy"] = current.log_probs, current.entropy
    # Gradients are averaged over processes, hence the factor: the result is that of all rows.
    optimizer = optimizer_of(policy)
    (processes * loss(policy, rollouts)).backward()
    results["gradient"] = full(policy, lambda p: p.grad)
    optimizer.step()
    optimizer.zero_grad()
    results["weights"] = full(policy)
    kept.blend("average", 0.75)
    with torch.no_grad():
        results["after"] = policy(rollouts).log_probs
        with kept.using("reference"):
            results["reference"] = policy(rollouts).log_probs
        with kept.using("average"):
            results["average"] = policy(rollouts).log_probs
            results["average sampled"] = policy.sample(
                prompts, group_size=PER_PROMPT, seeds=seeds
            ).completions
        assert torch.equal(policy(rollouts).log_probs, results["after"])
        results["moved"] = kept.distance("reference")
        kept.blend("reference", 0.75)
        with kept.using("reference"):
            results["mixed"] = policy(rollouts).log_probs
    # The completions of one process end at their first token, those of the other at the last.
    ends, policy.ends = policy.ends, list(range(1000)) if rank else [-1]
    _, results["passes"] = forwards(policy, prompts, group_size=1, seeds=seeds[::2])
    policy.ends = ends
    policy.save_pretrained(saved)
    return results


def main(out):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    torch.set_num_threads(1)
    cases = json.loads((out.parent / "cases.json").read_text())
    accelerator = Accelerator()
    mesh = processes.mesh(accelerator, cases["shard"])
    for name, settings in cases["models"].items():
        saved = out.parent / (name if accelerator.is_main_process else f"{name} of another")
        result = run(name, settings, mesh, saved)
        torch.save(result, out.parent / f"{name}-{mesh.get_rank()}.pt")
    for arguments in cases["runs"]:
        groupwise.train(**arguments, quiet=True)
    if accelerator.is_main_process:
        out.write_text("null")


if __name__ == "__main__":
    main(Path(sys.argv[2]))
