"""updater_of: the core's updates of a policy by an algorithm, without a run."""

from contextlib import nullcontext
from types import SimpleNamespace

from groupwise.algorithm import Algorithm
from groupwise.learning.update import Updater
from groupwise.policy import Policy


def updater_of(policy: Policy, algorithm: Algorithm, budget: int) -> Updater:
    """The core's `Updater`, in this process alone, on the policy's device.

    budget: the most decisions in a micro-batch.
    """
    alone = SimpleNamespace(
        device=next(policy.parameters()).device,
        num_processes=1,
        is_main_process=True,
        process_index=0,
        no_sync=lambda _: nullcontext(),
    )
    return Updater(
        policy=policy,
        model=policy,
        algorithm=algorithm,
        accelerator=alone,
        budget=budget,
        backpropagate=lambda loss: loss.backward(),
    )
