"""Processes: those of a run, and what they agree on: sums, means, whether any of them says so.

All but `accelerator` and `mesh` wait for every process, so all must call them alike. A sampler or
a policy that acts once for all processes uses them, too.
"""

import math
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import Tensor, distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from groupwise.errors import UserError, first_line

T = TypeVar("T")

MOST = 4
"""Differences that are told one by one."""
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def accelerator() -> Accelerator:
    """Accelerate's view of this process.

    Raises UserError for processes that do not meet; for those that do not know of each other, each
    of which would be a run of its own in the same folder; for mixed precision, which would wrap
    training's forward pass and not sampling, where the two must compute alike; for gradient
    accumulation, by which accelerate would divide gradients that are already those of a whole
    update; and for its ways to shard a model, for which a run has a setting of its own.
    """
    try:
        launched = Accelerator()
    except (distributed.DistNetworkError, distributed.DistStoreError) as error:
        raise UserError(_not_met(error)) from error
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" in os.environ and world != launched.num_processes:
        raise UserError(
            f"{world} processes were launched, and accelerate takes each for the only one: on a "
            f"CPU set ACCELERATE_USE_CPU=true"
        )
    if launched.distributed_type in SHARDED:
        raise UserError(
            f"accelerate is configured for {launched.distributed_type.value}, which would shard "
            f"the model behind the policy's back; launch with torchrun, or accelerate launch "
            f"--multi_gpu, and set train.shard: true"
        )
    if launched.mixed_precision != "no":
        raise UserError(
            f"accelerate is configured for {launched.mixed_precision} mixed precision, which would "
            f"hold in training and not in sampling; launch with --mixed_precision no and set "
            f"policy.precision, which holds for both"
        )
    if launched.gradient_accumulation_steps != 1:
        raise UserError(
            f"accelerate is configured for {launched.gradient_accumulation_steps} gradient "
            f"accumulation steps, by which it would divide every gradient; launch with "
            f"--gradient_accumulation_steps 1 (unset ACCELERATE_GRADIENT_ACCUMULATION_STEPS). How "
            f"much goes through the model at once is train.microbatch, and changes no gradient"
        )
    return launched


def _not_met(error: RuntimeError) -> str:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rank, world, address, port = (os.environ.get(name, "unset") for name in names)
    in_use = "EADDRINUSE" in str(error)
    why = f"port {port} is in use, perhaps by another run" if in_use else first_line(error)
    return (
        f"process {rank} of {world} cannot meet the others at MASTER_ADDR {address}, MASTER_PORT "
        f"{port}: {why}. MASTER_ADDR must be a name of the first process's machine that all the "
        f"others reach, and MASTER_PORT a free port there; launchers set them: torchrun "
        f"--master-addr and --master-port, or --rdzv-endpoint; accelerate launch "
        f"--main_process_ip and --main_process_port"
    )


def loss_of_others(error: Exception) -> str | None:
    """What to say of an error by which a process learns that it lost the others; None of others.

    NCCL's errors have a type of their own; gloo's are told by the source file that they begin with.
    """
    if not isinstance(error, distributed.DistBackendError) and "/gloo/transport/" not in str(error):
        return None
    return (
        f"another process of this run has ended or does not answer, so that this one cannot go "
        f"on: {first_line(error)}. Why it ended it says itself, or its launcher does. Started "
        f"again with --auto-resume the run goes on from its last checkpoint"
    )


def check_same(values: Mapping[str, Any]) -> None:
    """Raise UserError, on all processes, where one was started with other values than the first."""
    parts = gather_object([dict(values)])
    keys = dict.fromkeys(key for part in parts for key in part)
    different = [
        f"{key} is {parts[0].get(key, 'unset')} on process 0 and {part.get(key, 'unset')} on "
        f"process {rank}"
        for key in keys
        for rank, part in enumerate(parts)
        if part.get(key) != parts[0].get(key)
    ]
    if different:
        more = f" (and {len(different) - MOST} more)" if len(different) > MOST else ""
        raise UserError(
            f"the processes of this run have different configurations: "
            f"{'; '.join(different[:MOST])}{more}. Start all of them with the same file and "
            f"overrides"
        )


def mesh(accelerator: Accelerator) -> DeviceMesh:
    """All processes of the run, for a policy that is sharded among them; one is a mesh, too."""
    kind = accelerator.device.type
    if not distributed.is_initialized():
        backend = "nccl" if kind == "cuda" else "gloo"
        store = HashStore()
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    return init_device_mesh(kind, (accelerator.num_processes,))


def first(call: Callable[[], T]) -> T:
    """What it returns on the first process, the only one to call it; what it raises, all raise."""
    alone = PartialState().is_main_process
    answer, error = _outcome(call) if alone else (None, None)
    outcomes: list[Any] = [(answer, _sendable(error))]
    broadcast_object_list(outcomes)
    return _answers(outcomes, error)[0]


def each(call: Callable[[], T]) -> list[T]:
    """What it returns on each process, in order; what it raises on one, all raise."""
    answer, error = _outcome(call)
    return _answers(gather_object([(answer, _sendable(error))]), error)


def _outcome(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What it returns, and what it raises: others must be told of it, or they wait for ever."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def _sendable(error: Exception | None) -> Exception | None:
    """The error, or one that says the same where it cannot be sent to other processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _answers(outcomes: list[Any], own: Exception | None) -> list[Any]:
    """All answers; where there are errors, this process's own is raised, or else the first."""
    for error in (own, *(sent for _, sent in outcomes)):
        if error is not None:
            raise error
    return [answer for answer, _ in outcomes]


@torch.no_grad()
def share(tensors: Iterable[Tensor]) -> None:
    """Each becomes what it is on the first process, in place."""
    state = PartialState()
    for tensor in tensors if state.num_processes > 1 else ():
        there = tensor.detach().to(state.device)  # where processes can send it from
        distributed.broadcast(there, 0)
        tensor.copy_(there)


def means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean of each over all processes, NaN apart."""
    sums = {k: (float(v.nansum()), int((~v.isnan()).sum())) for k, v in values.items()}
    parts = gather_object([sums])
    averages = {}
    for name in values:
        count = sum(part[name][1] for part in parts)
        averages[name] = math.fsum(part[name][0] for part in parts) / count if count else math.nan
    return averages


def total(count: int) -> int:
    """The sum over all processes."""
    return sum(gather_object([count]))


def largest(count: int) -> int:
    return max(gather_object([count]))


def any_process(condition: bool) -> bool:
    """Whether it holds on any process: they must stop at the same step."""
    return any(gather_object([condition]))


def first_of(texts: Mapping[str, str]) -> dict[str, str]:
    """Those of all processes by name; of several with one name that of the first process."""
    parts = gather_object([dict(texts)])
    return {name: text for part in reversed(parts) for name, text in part.items()}


def union(groups: Tensor) -> Tensor:
    """The different group numbers of all processes, ascending."""
    return torch.tensor(sorted(set(gather_object(groups.unique().tolist()))), dtype=torch.int64)
