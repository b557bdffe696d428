"""Memory: how much a process of a run will need, while it samples and while it updates."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from groupwise.building.parts import Parts
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.policy import Policy


@dataclass(frozen=True)
class Sizes:
    """Bytes on a process by purpose: while it samples, and while it updates; and in CPU memory.

    A step first samples and then updates; the memory of sampling is freed before.
    """

    sampling: Mapping[str, int] = field(default_factory=dict)
    updating: Mapping[str, int] = field(default_factory=dict)
    cpu: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.sampling or self.updating)

    def all(self) -> Mapping[str, int]:
        return {**self.sampling, **self.updating}

    def largest(self) -> Mapping[str, int]:
        return max(self.sampling, self.updating, key=lambda sizes: sum(sizes.values()))


def estimate(
    parts: Parts, label: str, policy: type[Policy], settings: Any, *, processes: int, shards: int
) -> Sizes:
    """The sizes of a policy on one of `processes` processes, of which `shards` divide its weights.

    label: of its learner; settings: the policy's `Config`.
    """
    learning, evaluation = parts.config.learners[label], parts.config.evaluation
    train, group_size = learning.train, parts.players.sizes[label]
    trained = group_size if train.keep is None else min(group_size, train.keep.extremes)
    groups = parts.config.train.groups_per_step * parts.players.groups[label]
    algorithm = parts.algorithms[label]
    # Groups are never split between processes.
    updated = _share(groups // train.updates_per_rollout, processes)
    drawn = max(
        _share(groups, processes) * group_size,
        _share(evaluation.count, processes) * evaluation.samples,
    )
    load = Workload(
        decisions=0,
        # With another sampler, the policy samples nothing.
        sampled=min(train.sample_batch, drawn) if learning.sampler is None else 0,
        rollouts=updated * trained,
        group_size=group_size,
        training=True,
        reference=bool(algorithm.reference) and not algorithm.moves_reference,
        # What moves is a copy, like an average; with adapters, too.
        averages=int(train.ema is not None)
        + int(algorithm.moves_reference)
        + len(algorithm.copies),
        shards=shards,
    )
    sampling = policy.estimate(settings, load)
    rows = {id(p.source): len(p.source) for p in (parts.prompts, parts.evaluation_prompts)}
    cpu = policy.estimate_cpu(
        settings,
        rollouts=_share(groups, processes) * group_size,
        prompts=sum(rows.values()),
        facts=policy.optional_facts & (parts.named | policy.shown),
        references=sum(map(bool, (*algorithm.kept_outputs.values(), algorithm.teacher))),
    )
    if not learning.learns:
        return Sizes(sampling=sampling, cpu=cpu)
    updating = policy.estimate(settings, replace(load, decisions=train.microbatch, sampled=0))
    return Sizes(sampling=sampling, updating=updating, cpu=cpu)


def teacher_sizes(parts: Parts, label: str, *, shards: int) -> Sizes:
    """The sizes of a learner's teacher, its weights, on one of `shards` processes that divide them;
    empty if there is none, or no estimate."""
    learning = parts.config.learners[label]
    if learning.teacher is None:
        return Sizes()
    teacher = parts.plugin(label, "teacher")
    if teacher.settings is None:
        return Sizes()
    load = Workload(
        decisions=0,
        rollouts=0,
        group_size=learning.train.group_size,
        sampled=0,
        training=False,
        reference=False,
        averages=0,
        shards=shards,
    )
    held = {
        f"teacher: {k}": size
        for k, size in teacher.part_type.estimate(teacher.settings, load).items()
    }
    return Sizes(sampling=held, updating=held)


def reward_sizes(parts: Parts) -> Sizes:
    """Bytes on a process of the models of rewards, by purpose, held during the whole run; what
    rewards share counts once.

    Raises UserError, which names the reward, if a model cannot be estimated.
    """
    device: dict[str, int] = {}
    cpu: dict[str, int] = {}
    for scorer in filter(None, (parts.rewards, parts.watched)):
        for reward in scorer.rewards:
            members = reward.members
            try:
                device |= members.estimate() if members.estimate else {}
                cpu |= members.estimate_cpu() if members.estimate_cpu else {}
            except ValueError as error:
                raise UserError(f"reward {reward.name!r}: {error}") from error
    return Sizes(sampling=device, updating=device, cpu=cpu)


def _share(count: int, processes: int) -> int:
    """The largest share that a process has of so many groups or prompts."""
    return -(-count // processes)


def excess(device: Mapping[str, int], cpu: Mapping[str, int]) -> Iterator[str]:
    """Warnings where a process needs more memory than it has on this machine; by purpose."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    share = machine // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), "that a process has here"
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        yield from _too_much(device, gpu.total_memory, f"of this {gpu.name}")
        yield from _too_much(cpu, *share)
    else:
        yield from _too_much({**device, **cpu}, *share)


def _too_much(sizes: Mapping[str, int], available: int, where: str) -> Iterator[str]:
    """A warning if a process needs more memory than there is."""
    needed = sum(sizes.values())
    if needed > available:
        largest = sorted(sizes, key=lambda purpose: -sizes[purpose])[:3]
        listed = ", ".join(f"{purpose} {size(sizes[purpose])}" for purpose in largest)
        yield (
            f"a process takes {size(needed)}, more than the {size(available)} {where}; most of it "
            f"is {listed} (docs/scaling.md says what helps)"
        )


def size(count: int) -> str:
    """Bytes in GiB or MiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
