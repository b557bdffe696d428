"""One process of several: sharded policies beside whole ones, and how far they part.

python shard_job.py _ OUT: the folder of OUT has the pipelines; OUT gets, by case and measurement,
the most of all processes.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.flow import conftest as lab
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from groupwise import testing
from groupwise_flow import saving

OUT = Path(sys.argv[2])
FOLDER = OUT.parent

WINDOW = {"kind": "random", "size": 1, "until": 1.0}
CASES = {
    "full": ("sd3", {"guidance": 2.0, "shared_noise": True, "window": WINDOW, "batch": 3}),
    "lora": ("sd3.5", {"guidance": 2.0, "lora": {"rank": 2}}),
    "bf16": ("sd3", {"precision": "bf16", "lora": {"rank": 2}}),
    "flux": ("flux with idle parts", {"gradient_checkpointing": True}),
}
ROWS = [{"prompt": f"{letter} {animal}"} for letter in "abc" for animal in ("cat", "dog")]


def policy_of(model, mesh=None, **settings):
    torch.manual_seed(1)
    size = {"height": 16, "width": 16, "prompt_tokens": 12, "steps": 5, "evaluation_steps": 3}
    policy = lab.FlowPolicy(lab.Settings(model=str(FOLDER / model), **size, **settings))
    if mesh is not None:
        policy.shard(mesh)
    policy.place("cpu")
    policy.begin(0)
    return policy


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def apart(one, other):
    return float((whole(one).detach() - whole(other).detach()).abs().max())


def gathered(value):
    values = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def spread(number):
    numbers = gathered(number)
    return max(numbers) - min(numbers)


def sample(policy, rank):
    """Groups whose windows start elsewhere on the first process than on the others."""
    starts = [(seed, int(policy.config.window.starts(5, [seed], 0)[0])) for seed in range(99)]
    first, second = [seed for seed, start in starts if start == (0 if rank else starts[0][1])][:2]
    passes = lab.calls(policy)
    rows, seeds = ROWS[2 * rank : 2 * rank + 2], [first, 100, 101, second, 102, 103]
    return policy.sample(rows, group_size=3, seeds=seeds), spread(len(passes))


def gradient(policy, answer, world):
    """Of the mean over processes, as a vector; it stays on the weights for an optimizer."""
    answer.log_probs.sum().backward()
    vector = []
    for parameter in lab.trained(policy):
        value = torch.zeros(parameter.shape) if parameter.grad is None else parameter.grad
        if policy.mesh is None:
            distributed.all_reduce(value)
            value /= world
        vector.append(whole(value).flatten())
    return torch.cat(vector)


def step(policy):
    policy.keep("reference")
    torch.optim.AdamW(lab.trained(policy), lr=1e-2, weight_decay=0.0).step()


@torch.no_grad()
def after_a_step(one, many, rollouts, before):
    passes = lab.calls(many)
    moved = [policy(rollouts).log_probs for policy in (one, many)]
    told = {"passes by other weights": len(passes), "unmoved": -apart(moved[0], before)}
    told["after a step"] = apart(*moved)
    with many.using("reference"):
        told["reference"] = apart(many(rollouts).log_probs, before)
    for policy in (one, many):
        policy.blend("reference", 0.5)
    with one.using("reference"), many.using("reference"):
        told["average"] = apart(*(policy(rollouts).log_probs for policy in (one, many)))
    told["back"] = apart(many(rollouts).log_probs, moved[1])
    return told, moved[1]


def compare(name, rank, world, mesh):
    model, settings = CASES[name]
    one, many = policy_of(model, **settings), policy_of(model, mesh, **settings)
    mine, trained = dict(one.named_parameters()), dict(many.adapter.model.named_parameters())
    held = sum(p.to_local().numel() for p in trained.values())
    told = {"held": held / sum(p.numel() for p in trained.values())}
    told["weights"] = max(apart(p, mine[n]) for n, p in many.named_parameters())
    (drawn, told["uneven passes"]), (other, told["passes apart"]) = (
        sample(policy, rank) for policy in (one, many)
    )
    told["samples"] = apart(lab.images_of(drawn), lab.images_of(other))
    told["said"] = apart(drawn.sampler_log_probs, other.sampler_log_probs)
    if name == "bf16":
        errors = [rollouts.facts["log_prob_error"][0] for rollouts in (drawn, other)]
        return told | {"rounding": abs(errors[0] - errors[1])}
    passes = lab.calls(many)
    answers = [policy(other) for policy in (one, many)]
    told["passes"] = len(passes)
    told["log-probs"] = apart(*(answer.log_probs for answer in answers))
    gradients = [gradient(p, a, world) for p, a in zip((one, many), answers, strict=True)]
    told["gradient"] = lab.gap(gradients[1], gradients[0])
    for policy in (one, many):
        step(policy)
    more, moved = after_a_step(one, many, other, answers[0].log_probs.detach())
    return told | more | save(name, one, many, other, moved)


@torch.no_grad()
def save(name, one, many, rollouts, moved):
    """Files as a whole policy writes them, or several, which both kinds read."""
    folder = FOLDER / f"saved {name}"
    if name == "flux":
        saving.FILE_SIZE = "20KB"
    many.save_pretrained(folder / "many")
    distributed.barrier()
    if name == "flux":
        again = [policy_of(f"{folder.name}/many", mesh) for mesh in (None, many.mesh)]
        files = list((folder / "many" / "transformer").glob("*.safetensors"))
        away = max(apart(policy(rollouts).log_probs, moved) for policy in again)
        return {"saved": away, "files": len(files)}
    if distributed.get_rank():
        return {}
    one.save_pretrained(folder / "one")
    names = [
        {str(path.relative_to(folder / kind)) for path in (folder / kind).rglob("*.*")}
        for kind in ("one", "many")
    ]
    assert names[0] == names[1], names[0] ^ names[1]
    away = 0.0
    for file in names[0]:
        paths = [folder / kind / file for kind in ("one", "many")]
        if file.endswith(".safetensors"):
            tensors = [load_file(path) for path in paths]
            assert tensors[0].keys() == tensors[1].keys()
            away = max([away, *(apart(v, tensors[1][n]) for n, v in tensors[0].items())])
        else:
            assert paths[0].read_bytes() == paths[1].read_bytes(), file
    return {"saved": away}


def laws(mesh):
    """A sharded policy of one process keeps the laws of policies."""
    policy = policy_of("sd3", mesh, lora={"rank": 2}, guidance=3.0)

    def load(path):
        made = policy_of("sd3", guidance=3.0)
        made.adapter.pipeline.load_lora_weights(path)
        return made

    with testing.compare.nudged(policy, size=0.5):
        testing.check_policy(policy, ROWS[:2], group_size=2, load=load)
        testing.check_sampler(policy, policy, ROWS[:2], group_size=2)


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    distributed.init_process_group("gloo")
    meshes = init_device_mesh("cpu", (world, 1), mesh_dim_names=("all", "alone"))
    if rank == 0:
        laws(meshes["alone"])
    parts = gathered({name: compare(name, rank, world, meshes["all"]) for name in CASES})
    most = {
        name: {key: max(part[name].get(key, 0.0) for part in parts) for key in parts[0][name]}
        for name in CASES
    }
    if rank == 0:
        OUT.write_text(json.dumps(most))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
