"""Sampler: what draws completions. A policy is its own sampler; an inference engine is another."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from groupwise.rollouts import Rollouts

Purpose = Literal["train", "evaluate", "greedy"]


def products_are_exact() -> bool:
    """Whether torch takes matrix products of float32 in float32, and not in TF32 or bf16.

    What is not exact in this sense may not be in that of `Sampler.exact`.
    """
    switch = torch.backends.cuda.matmul
    if hasattr(switch, "fp32_precision"):  # torch 2.9 has it, and sets it by the older switch, too
        return switch.fp32_precision in {"none", "ieee"}
    return torch.get_float32_matmul_precision() == "highest"


class Sampler(ABC):
    """Draws completions with the weights of a policy that it follows.

    A plugin's sampler is a class with a nested `Config`, built as `Target(config, policy)`.

    policy_class: the class of policies it can draw for. requires: what it builds on of that which
        a policy `provides`.
    seeded: whether a sample depends on its own seed alone, so that batching, processes and resuming
        change nothing. An engine that batches as requests come in cannot promise that.
    exact: whether its log-probs are those that the policy's `forward` gives, by the same code in
        the same precision: then they may stand for the policy's own, and no correction is due.
    """

    policy_class: ClassVar[type] = object
    requires: ClassVar[frozenset[str]] = frozenset()
    seeded: bool = True
    exact: bool = False

    @abstractmethod
    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        """Sample `group_size` rollouts for each row, those of a row adjacent and in order.

        seeds: one per rollout.
        purpose: "train" samples from the distribution that the policy's `forward` scores;
            "evaluate" may take the better settings of actual use; "greedy" takes the likeliest
            decisions.

        `groups` numbers the rows 0, 1, ... and is renumbered by the core. A sampler other than the
        policy fills in `versions` with the version it followed when it drew.
        """

    @abstractmethod
    def follow(self, policy: nn.Module, name: str, version: int) -> None:
        """Draw with the policy's present weights from now on, until told of others.

        Called on every process before sampling, whenever these weights are not those followed
        last, and with no sampling in flight. Copy what is needed: weights change afterwards.

        name: "policy" for the weights in training, else the name they are kept by ("average").
        version: how many training steps these weights have seen.
        """

    def close(self) -> None:  # noqa: B027
        """Called once when the run ends, after an error, too."""
