"""Preflight: what a class of policies says of a configuration, before there are weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from groupwise.kit.memory import Workload


class Preflight:
    """The part of `Policy` that `groupwise check` and the start of a run ask the class.

    In all methods config is the policy's `Config`, None if it has none. All are optional.

    reads_attachments: whether it reads what is attached to prompts, such as pictures; then that is
        a part of a row's question, which decides whether the row is held out.
    """

    reads_attachments: ClassVar[bool] = False

    @classmethod
    def reads_attached(cls, config: Any) -> bool:
        """`reads_attachments`, where it depends on the configuration."""
        return cls.reads_attachments

    @classmethod
    def examine(cls, config: Any, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """Notes on the configuration, and on rows of prompts as `Policy.check_prompts` has them.

        Raises UserError for what a run would refuse.
        """
        return ()

    @classmethod
    def examine_tools(cls, config: Any) -> None:
        """Raise UserError if the model could not call tools that an environment shows to it."""

    @classmethod
    def least_rate(cls, config: Any) -> float:
        """The least usual learning rate of the adapters that are trained, for a warning of
        `groupwise check`; 0 for none, as for whole models."""
        return 0.0

    @classmethod
    def estimate(cls, config: Any, load: Workload) -> Mapping[str, int]:
        """Bytes on one process by purpose ("weights", "optimizer", ...); {} for no estimate.

        With `load.shards` above 1, add the buffers of gathered weights (`groupwise.kit.memory`).
        """
        return {}

    @classmethod
    def estimate_cpu(
        cls, config: Any, *, rollouts: int, prompts: int, facts: frozenset[str], references: int
    ) -> Mapping[str, int]:
        """Bytes in CPU memory on one process by purpose, where the model is on another device: of
        rollouts and caches, which `estimate` does not count; {} for no estimate.

        rollouts: of a step; prompts: rows of the data set; facts: as for `Policy.prepare`.
        references: of how many other weights (a reference, a teacher) outputs are kept until the
        update.
        """
        return {}
