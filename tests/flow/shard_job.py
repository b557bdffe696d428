"""One process of several: compares sharded policies with unsharded ones.

python shard_job.py _ OUT: the folder of OUT holds the pipelines; OUT gets, by case and
measurement, the largest value of all processes. Differences are shares of what rounding explains
(`tests/rounding.py`), but for those that must be 0.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from tests import rounding
from tests.flow import conftest as lab
from tests.flow.stand_ins import MODELS as STAND_INS
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from groupwise import testing
from groupwise.kit import processes
from groupwise.weights import KeptWeights
from groupwise_flow.files import saving
from groupwise_testing.policy import gradients
from groupwise_testing.policy.case import Case

OUT = Path(sys.argv[2])
FOLDER = OUT.parent

WINDOW = {"kind": "random", "size": 1, "until": 1.0}
CASES = {
    "full": ("sd3", {"guidance": 2.0, "shared_noise": True, "window": WINDOW, "batch": 3}),
    "lora": (
        "sd3.5",
        {"guidance": 2.0, "guidance_gradient": "conditional", "lora": {"rank": 2}},
    ),
    "bf16": ("sd3", {"precision": "bf16", "lora": {"rank": 2}}),
    "unet": ("sd15 v", {"sde": "ddim", "noise_level": 1.0, "lora": {"rank": 2}}),
    "flux": ("flux with idle parts", {"gradient_checkpointing": True}),
}
MODELS = ("z_image", "qwen_image", "flux2_klein", "sana", "lumina2", "wan22")
ROWS = [{"prompt": f"{letter} {animal}"} for letter in "abcd" for animal in ("cat", "dog")]


def policy_of(model, mesh=None, **settings):
    torch.manual_seed(1)
    size = {"height": 16, "width": 16, "prompt_tokens": 12}
    if model in STAND_INS:
        size = STAND_INS[model].size
    usual = {"model": str(FOLDER / model), **size, "steps": 5, "evaluation_steps": 3}
    policy = lab.FlowPolicy(lab.FlowPolicy.Config(**{**usual, **settings}))
    if mesh is not None:
        policy.shard(mesh)
    policy.prepare(outputs=policy.provides, facts=frozenset({"pixels"}))
    policy.place("cpu")
    policy.begin(0)
    return policy


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def max_difference(one, other):
    return float((full(one).detach() - full(other).detach()).abs().max())


def gathered(value):
    values = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def spread(value):
    values = gathered(value)
    return max(values) - min(values)


def sample(policy, rank):
    """Rollouts whose windows start at another step on the first process than on the others."""
    starts = [(seed, int(policy.config.window.starts(5, [seed], 0)[0])) for seed in range(99)]
    first, second = [seed for seed, start in starts if start == (0 if rank else starts[0][1])][:2]
    passes = lab.calls(policy)
    rows, seeds = ROWS[2 * rank : 2 * rank + 2], [first, 100, 101, second, 102, 103]
    return policy.sample(rows, group_size=3, seeds=seeds), spread(len(passes))


def shown(rollouts):
    """Images and log-probs of a sample; in bf16 rounding can move a pixel by a tenth, no mean."""
    images = lab.images_of(rollouts)
    if "log_prob_error" in rollouts.facts:
        images = images.mean(dim=(2, 3))
    return {"samples": images, "sampler log-probs": rollouts.sampler_log_probs}


def shares(one, other, compute):
    """By name, the difference of two results as a share of what rounding explains.

    compute: gives the first one again.
    """
    allowed = dict(zip(one, rounding.bounds(compute, result=one), strict=True))
    return {
        name: rounding.excess(full(one[name]), full(other[name]), [bound])
        for name, bound in allowed.items()
    }


def gradient(policy, current, world):
    """The gradient averaged over processes, as a vector; it also stays in `parameter.grad`."""
    current.log_probs.sum().backward()
    vector = []
    for parameter in lab.trained(policy):
        value = torch.zeros(parameter.shape) if parameter.grad is None else parameter.grad
        if policy.mesh is None:
            distributed.all_reduce(value)
            value /= world
        vector.append(full(value).flatten())
    return torch.cat(vector)


def of_model(model, rank, world, mesh):
    """Log-probs and gradient of a model in the box, sharded and not."""
    # The first of four noise levels is that of one transformer of wan22, the others of the other.
    settings = {"guidance": 3.0, "lora": {"rank": 2}, "steps": 4 if model == "wan22" else 3}
    unsharded, sharded = (policy_of(model, each, **settings) for each in (None, mesh))
    for policy in (unsharded, sharded):
        for parameter in lab.trained(policy):
            torch.nn.init.constant_(parameter, 0.05)
    # Others of these seeds come so near to a kink of Sana's ReLU that rounding crosses it.
    rows, seeds = ROWS[2 * rank : 2 * rank + 2], [rank + 20, rank + 29]
    rollouts = unsharded.sample(rows, group_size=1, seeds=seeds)

    def results(policy):
        policy.zero_grad()
        answer = policy(rollouts)
        values = {"log-probs": answer.log_probs, "gradient": gradient(policy, answer, world)}
        return shown(policy.sample(rows, group_size=1, seeds=seeds)) | values

    values = results(unsharded)
    differences = shares(values, results(sharded), lambda: results(unsharded))
    measurements = {"no gradient": float(values["gradient"].norm() == 0)}
    return differences | measurements | {"local share": local_share(sharded)}


def local_share(policy):
    """The share of the trained models' weights that this process holds."""
    weights = [p for model in policy.adapter.models.values() for p in model.parameters()]
    local = sum(p.to_local().numel() for p in weights if isinstance(p, DTensor))
    whole = sum(p.numel() for p in weights if not isinstance(p, DTensor))
    return (local + whole) / sum(p.numel() for p in weights)


def step(policy):
    """Makes an update; returns the kept weights, with those before it as the reference.

    AdamW divides by the gradient's size, so that with its own `eps` rounding errors in gradients
    near 0 would become steps.
    """
    kept = KeptWeights(policy)
    kept.keep("reference")
    torch.optim.AdamW(lab.trained(policy), lr=1e-2, weight_decay=0.0, eps=0.1).step()
    return kept


def results(policy, rollouts, world):
    """Log-probs before and after an update, its gradient, and log-probs by averaged weights.

    The policy has its weights of before again.
    """
    policy.zero_grad()
    answer = policy(rollouts)
    values = {"log-probs": answer.log_probs, "gradient": gradient(policy, answer, world)}
    before = [parameter.detach().clone() for parameter in lab.trained(policy)]
    kept = step(policy)
    with torch.no_grad():
        values["after a step"] = policy(rollouts).log_probs
        kept.blend("reference", 0.5)
        with kept.using("reference"):
            values["average"] = policy(rollouts).log_probs
        for parameter, weight in zip(lab.trained(policy), before, strict=True):
            parameter.copy_(weight)
    return values


def compare(name, rank, world, mesh):
    model, settings = CASES[name]
    unsharded, sharded = policy_of(model, **settings), policy_of(model, mesh, **settings)
    parameters = dict(unsharded.named_parameters())
    measurements = {"local share": local_share(sharded)}
    measurements["weights"] = max(
        max_difference(p, parameters[n]) for n, p in sharded.named_parameters()
    )
    draws = [sample(policy, rank) for policy in (unsharded, sharded)]
    (drawn, measurements["uneven passes"]), (other, measurements["passes apart"]) = draws
    measurements |= shares(*map(shown, (drawn, other)), lambda: shown(sample(unsharded, rank)[0]))
    if name == "bf16":
        errors = [rollouts.facts["log_prob_error"][0] for rollouts in (drawn, other)]
        return measurements | {"rounding": abs(errors[1] / errors[0] - 1)}
    return measurements | update(name, unsharded, sharded, other, world)


def update(name, unsharded, sharded, rollouts, world):
    """Compares log-probs and gradients, those after an update, and what is saved then."""
    passes = lab.calls(sharded)
    before = sharded(rollouts).log_probs.detach()
    measurements = {"passes": len(passes)}
    expected = results(unsharded, rollouts, world)
    measurements |= shares(
        expected, results(sharded, rollouts, world), lambda: results(unsharded, rollouts, world)
    )
    sharded.zero_grad()
    gradient(sharded, sharded(rollouts), world)
    kept = step(sharded)
    passes.clear()
    with torch.no_grad():
        moved = sharded(rollouts).log_probs
        measurements["passes by other weights"] = len(passes)
        measurements["negative change"] = -max_difference(moved, before)
        with kept.using("reference"):
            by_reference = sharded(rollouts).log_probs
        allowed = rounding.bounds(lambda: unsharded(rollouts).log_probs)
        measurements["reference"] = rounding.excess(by_reference, before, allowed)
        measurements["back"] = max_difference(sharded(rollouts).log_probs, moved)
    return measurements | save(name, unsharded, sharded, rollouts, moved)


@torch.no_grad()
def save(name, unsharded, sharded, rollouts, moved):
    """Saves the same files as an unsharded policy, or several shards that both kinds read.

    The unsharded policy first gets the sharded one's weights, since each made its own step, and
    files are compared to the last bit.
    """
    parameters = dict(unsharded.named_parameters())
    for parameter, weight in sharded.named_parameters():
        parameters[parameter].copy_(full(weight))
    folder = FOLDER / f"saved {name}"
    if name == "flux":
        saving.FILE_SIZE = "20KB"
    sharded.save_pretrained(folder / "many")
    distributed.barrier()
    if name == "flux":
        policies = [policy_of(f"{folder.name}/many", mesh) for mesh in (None, sharded.mesh)]
        files = list((folder / "many" / "transformer").glob("*.safetensors"))
        allowed = rounding.bounds(lambda: policies[0](rollouts).log_probs)
        difference = max(
            rounding.excess(policy(rollouts).log_probs, moved, allowed) for policy in policies
        )
        return {"difference when saved": difference, "files": len(files)}
    if distributed.get_rank():
        return {}
    unsharded.save_pretrained(folder / "one")
    names = [
        {str(path.relative_to(folder / kind)) for path in (folder / kind).rglob("*.*")}
        for kind in ("one", "many")
    ]
    assert names[0] == names[1], names[0] ^ names[1]
    difference = 0.0
    for file in names[0]:
        paths = [folder / kind / file for kind in ("one", "many")]
        if file.endswith(".safetensors"):
            tensors = [load_file(path) for path in paths]
            assert tensors[0].keys() == tensors[1].keys()
            difference = max(
                [difference, *(max_difference(v, tensors[1][n]) for n, v in tensors[0].items())]
            )
        else:
            assert paths[0].read_bytes() == paths[1].read_bytes(), file
    return {"difference when saved": difference}


def laws_of_gradients(mesh):
    """The gradient, a mean over processes, is that of the outputs, also a mean."""
    policy = policy_of("sd3", mesh, window=WINDOW, lora={"rank": 2}, guidance=3.0)
    rank = mesh.get_rank()
    case = Case(policy, ROWS[2 * rank : 2 * rank + 2], 1, None)
    testing.hold("a sharded policy", gradients.LAWS, case)


def laws(mesh):
    """A sharded policy of one process passes the checks of `groupwise.testing`."""
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
    cases = list(CASES)
    if world == 4:  # two copies of two shards
        mesh, cases = processes.mesh(Accelerator(cpu=True), 2), ["lora"]
    else:
        meshes = init_device_mesh("cpu", (world, 1), mesh_dim_names=("all", "alone"))
        mesh = meshes["all"]
        if rank == 0:
            laws(meshes["alone"])
    laws_of_gradients(mesh)
    measured = {name: compare(name, rank, world, mesh) for name in cases}
    if world != 4:
        measured |= {name: of_model(name, rank, world, mesh) for name in MODELS}
    measurements = gathered(measured)
    largest = {
        name: {
            key: max(part[name].get(key, 0.0) for part in measurements)
            for key in measurements[0][name]
        }
        for name in measured
    }
    if rank == 0:
        OUT.write_text(json.dumps(largest))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
