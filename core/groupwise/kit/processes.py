"""Processes: collectives over the processes of a run: sums, means, "is it true on any?".

All functions but `accelerator`, `mesh`, `shards` and `shard_of` are collectives: they wait until
every process has called them, so all processes must call them in the same order. Samplers and
policies may use them, for what one process does for all.

How a run is divided: process r of n plays and scores every n-th group of a step. Of images, it has
others sample some where they have fewer (`episodes/spreading.py`). Targets are computed over the
scores and masks of all processes, which are small. Rollouts then go, with their trajectories, from
processes with long ones to those that have less to do (`learning/dealing.py`); completions stay on
the process that judges them. DDP averages gradients over processes while the loss weights already
divide by counts of the whole update, so losses are multiplied by n; gradients are reduced in the
last micro-batch only. A process with fewer micro-batches runs the remaining ones on a dummy
rollout, with its loss multiplied by 0. Only the first process writes files and prints.

With `train.shard` a policy divides its weights (FSDP2), and with them gradients, moments, kept
weights and checkpoints. With `true` the mesh has one dimension; with `node` or a number two,
("replicate", "shard"), and the rows of processes are copies of each other (HSDP). The policy is
built on `meta`, sharded, then placed, so that no process ever holds all weights; it is called
without DDP. Every pass contains collectives, so all processes make equally many: also passes of the
reference and of old log-probs, and calls of `sample`, for which a process that has no prompt left
samples one again and drops the completions. Gradients of a full model are summed within a row in
every micro-batch and between rows in the last one only; those of adapters in the last one only.
After an error on one process no checkpoint is saved, since saving needs all of them.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import Tensor, distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from groupwise.kit import rendezvous, waiting
from groupwise.kit.errors import UserError, first_line, message_of

T = TypeVar("T")

MOST = 4
"""Differences between configurations that a message lists."""
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def accelerator() -> Accelerator:
    """Accelerate's view of this process.

    Raises UserError
    - if the processes do not meet in time, or do not know of each other (each would then write a
      run of its own into the same folder);
    - for mixed precision: accelerate would apply it to training's forward pass and not to sampling,
      and the two must compute alike;
    - for gradient accumulation: accelerate would divide gradients that already belong to a whole
      update;
    - for accelerate's FSDP, DeepSpeed or Megatron: `train.shard` does that.
    """
    try:
        launched = Accelerator(kwargs_handlers=[rendezvous.arguments()])
    except (
        rendezvous.NotMetError,
        distributed.DistNetworkError,
        distributed.DistStoreError,
    ) as error:
        raise rendezvous.failed(error) from error
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" in os.environ and world != launched.num_processes:
        raise UserError(
            f"{world} processes were launched, but accelerate does not connect them; on a CPU set "
            f"ACCELERATE_USE_CPU=true"
        )
    if launched.distributed_type in SHARDED:
        raise UserError(
            f"accelerate is configured for {launched.distributed_type.value}, and a policy shards "
            f"its model itself; launch with torchrun, or accelerate launch --multi_gpu, and set "
            f"train.shard: true"
        )
    if launched.mixed_precision != "no":
        raise UserError(
            f"accelerate is configured for {launched.mixed_precision} mixed precision, which would "
            f"apply to training and not to sampling; launch with --mixed_precision no and set "
            f"policy.precision, which applies to both"
        )
    if launched.gradient_accumulation_steps != 1:
        raise UserError(
            f"accelerate is configured for {launched.gradient_accumulation_steps} gradient "
            f"accumulation steps, by which it would divide every gradient; launch with "
            f"--gradient_accumulation_steps 1 (unset ACCELERATE_GRADIENT_ACCUMULATION_STEPS). To "
            f"save memory lower train.microbatch, which does not change the gradient"
        )
    return launched


def loss_of_others(error: Exception) -> str | None:
    """The message for an error of a collective because another process is gone; None for others.

    NCCL's errors have a type of their own; gloo's are recognised by the source file in their text.
    """
    if not isinstance(error, distributed.DistBackendError) and "/gloo/transport/" not in str(error):
        return None
    return (
        f"another process of this run has ended, or has not answered for {waiting.timeout():g} s "
        f"(train.timeout), so this one cannot go on: {first_line(error)}. The reason is in that "
        f"process's output, or in its launcher's. Started again with --auto-resume, the run goes "
        f"on from its last checkpoint"
    )


def check_same(values: Mapping[str, Any]) -> None:
    """Raise UserError, on all processes, if one was started with other values than the first."""
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


def mesh(accelerator: Accelerator, shard: bool | str | int = True) -> DeviceMesh:
    """A mesh of all processes of the run, for a sharded policy; also for a single process.

    shard: `train.shard`. If weights are divided among fewer than all, the mesh has two dimensions,
    ("replicate", "shard"): each row of processes holds all weights. Raises UserError as `shards`.
    """
    kind, world = accelerator.device.type, accelerator.num_processes
    count = shards(shard, world)
    if not distributed.is_initialized():
        backend = "nccl" if kind == "cuda" else "gloo"
        store = HashStore()
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    if count == world:
        return init_device_mesh(kind, (world,))
    return init_device_mesh(kind, (world // count, count), mesh_dim_names=("replicate", "shard"))


def shards(shard: bool | str | int, processes: int) -> int:
    """Among how many of so many processes `train.shard` divides the weights.

    Raises UserError if the processes cannot be divided so, or those of a node are not known.
    """
    if isinstance(shard, bool):
        return processes if shard else 1
    local = os.environ.get("LOCAL_WORLD_SIZE", "1" if processes == 1 else "")
    if shard == "node" and not local:
        raise UserError(
            "train.shard: node: LOCAL_WORLD_SIZE, the number of processes of a node, is not set "
            "here, as torchrun does; set train.shard to that number"
        )
    count = min(int(local if shard == "node" else shard), processes)
    if processes % count:
        raise UserError(
            f"train.shard: {shard}: {processes} processes cannot be divided into groups of "
            f"{count}; set train.shard to a divisor of {processes}, or to true"
        )
    return count


def shard_of(mesh: DeviceMesh) -> tuple[int, int]:
    """The number of the shard that this process holds of each weight, and of all shards."""
    last = mesh.ndim - 1
    return mesh.get_local_rank(last), mesh.size(last)


def first(call: Callable[[], T], *, patient: bool = False) -> T:
    """Call it on the first process only; all processes return its result, or raise its error.

    patient: wait for it for as long as it works, beyond `train.timeout`.
    """
    alone = PartialState().is_main_process
    if patient and PartialState().num_processes > 1:
        answer, error = waiting.patiently(lambda: _outcome(call), ranks=[0]) or (None, None)
    else:
        answer, error = _outcome(call) if alone else (None, None)
    outcomes: list[Any] = [(answer, _sendable(error))]
    broadcast_object_list(outcomes)
    return _answers(outcomes, error)[0]


def each(call: Callable[[], T], *, patient: bool = False) -> list[T]:
    """Call it on every process, return all results by rank; an error on one is raised on all.

    patient: as of `first`.
    """
    world = PartialState().num_processes
    if patient and world > 1:
        outcome = waiting.patiently(lambda: _outcome(call), ranks=range(world))
        assert outcome is not None
    else:
        outcome = _outcome(call)
    answer, error = outcome
    return _answers(gather_object([(answer, _sendable(error))]), error)


def _outcome(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result and the error of a call: the error is sent on, or others would wait for ever."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def _sendable(error: Exception | None) -> Exception | None:
    """The error, or one with the same message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {message_of(error)}")
    return error


def _answers(outcomes: list[Any], own: Exception | None) -> list[Any]:
    """All results; if there are errors, raise this process's own, else the first."""
    for error in (own, *(sent for _, sent in outcomes)):
        if error is not None:
            raise error
    return [answer for answer, _ in outcomes]


@torch.no_grad()
def share(tensors: Iterable[Tensor]) -> None:
    """Overwrite each tensor, in place, by its value on the first process."""
    state = PartialState()
    for tensor in tensors if state.num_processes > 1 else ():
        value = tensor.detach().to(state.device)  # the device of collectives
        distributed.broadcast(value, 0)
        tensor.copy_(value)


def exchange(parts: Sequence[T]) -> list[T]:
    """Give each process its part of these; returns what all processes gave to this one, by rank."""
    state = PartialState()
    if state.num_processes == 1:
        return [*parts]
    sent = [torch.frombuffer(bytearray(pickle.dumps(part)), dtype=torch.uint8) for part in parts]
    sizes: list[list[int]] = gather_object([[len(part) for part in sent]])
    counts = [row[state.process_index] for row in sizes]
    received = torch.empty(sum(counts), dtype=torch.uint8, device=state.device)
    lengths = [len(part) for part in sent]
    distributed.all_to_all_single(received, torch.cat(sent).to(state.device), counts, lengths)
    return [pickle.loads(part.numpy().tobytes()) for part in received.cpu().split(counts)]


def total(count: int) -> int:
    """The sum over all processes."""
    return sum(gather_object([count]))


def largest(count: int) -> int:
    return max(gather_object([count]))


def any_process(condition: bool) -> bool:
    """Whether it is true on any process; all must stop at the same step, for example."""
    return any(gather_object([condition]))


def first_of(texts: Mapping[str, str]) -> dict[str, str]:
    """The strings of all processes by name; where several have one, that of the lowest rank."""
    parts = gather_object([dict(texts)])
    return {name: text for part in reversed(parts) for name, text in part.items()}


def union(groups: Tensor) -> Tensor:
    """The distinct group numbers of all processes, ascending."""
    return torch.tensor(sorted(set(gather_object(groups.unique().tolist()))), dtype=torch.int64)
