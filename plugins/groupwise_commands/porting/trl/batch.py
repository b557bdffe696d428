"""Batch arithmetic of TRL: completions of a generation, and updates of it, over all processes."""

import math
from dataclasses import dataclass

from groupwise.kit.errors import UserError
from groupwise_commands.porting.port import Port


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A generation of TRL's. completions, groups: in it; updates: optimizer steps on it, once;
    epochs: passes over it.
    """

    completions: int
    groups: int
    updates: float
    epochs: int

    @property
    def updates_per_step(self) -> float:
        """Their steps (optimizer updates) in one of ours (a generation with its updates)."""
        return self.updates * self.epochs

    def steps(self, theirs: float) -> int:
        """Our steps for a number of theirs, at least 1."""
        return max(1, math.ceil(theirs / self.updates_per_step))


def batch(port: Port) -> Batch:
    """Raises UserError where TRL refuses the numbers, too."""
    source, group = port.settings.source, port.get("num_generations")
    accumulated = port.get("gradient_accumulation_steps")
    size, steps = port.get("generation_batch_size"), port.get("steps_per_generation")
    one_pass = port.get("per_device_train_batch_size") * port.processes
    if size is not None and steps is not None:
        raise UserError(
            f"{source}: generation_batch_size and steps_per_generation are both set, which TRL "
            f"refuses; leave one out"
        )
    if size is None:
        size = one_pass * (accumulated if steps is None else steps)
    if size % one_pass or size % group:
        raise UserError(
            f"{source}: a generation of {size} completions (per_device_train_batch_size x "
            f"accumulated steps x {port.processes} processes) is not a multiple of num_generations "
            f"{group}, or not of {one_pass} in a pass, which TRL refuses; set --processes to the "
            f"number of processes that it ran with"
        )
    return Batch(
        completions=size,
        groups=size // group,
        updates=size / one_pass / accumulated,
        epochs=port.get("num_iterations"),
    )


def write_groups(port: Port) -> None:
    """`train.groups_per_step` and `train.updates_per_rollout`."""
    theirs = batch(port)
    port.write(
        "train.groups_per_step",
        theirs.groups,
        f"{theirs.completions:,} completions of a generation, over {port.processes} "
        f"process{'' if port.processes == 1 else 'es'} / {port.get('num_generations')} of a prompt",
    )
    updates = math.gcd(round(theirs.updates), theirs.groups) if theirs.updates >= 1 else 1
    why = (
        "" if updates == theirs.updates else f"{theirs.updates:g} there; here an update has whole "
    )
    if updates != 1 or why:
        port.write("train.updates_per_rollout", updates, f"{why}groups" if why else "")


def write_steps(port: Port) -> None:
    """`train.steps` of `max_steps`, or `train.data_epochs` of `num_train_epochs`."""
    theirs, updates = batch(port), port.get("max_steps")
    if updates > 0:
        steps = theirs.steps(updates)
        why = f"{updates:,} updates there, {theirs.updates_per_step:g} of them a step here"
        port.write("train.steps", steps, why if steps != updates else "")
    else:
        port.write("train.data_epochs", port.get("num_train_epochs"), "")
